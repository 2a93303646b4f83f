"""What a browser's pages showed and logged, for the report of a test that has failed.

A picture does not come out of CI, and a page that waits for ever looks like one that is
slow.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page

PAGES: pytest.StashKey[list[tuple[Page, list[str]]]] = pytest.StashKey()
#: What our extension and JupyterLab show of a session's state.
SHOWN = "dialog[open], #gpu-reclaim-notice, .gpu-reclaim-corner, .jp-Dialog, .jp-Cell"
LINES = 40  #: of a page's own log, the last ones


def watch(item: pytest.Item, context: BrowserContext) -> None:
    """Remember what the pages of a context log from now on."""
    pages = item.stash.setdefault(PAGES, [])

    def added(page: Page) -> None:
        log: list[str] = []
        pages.append((page, log))
        page.on("console", lambda line: log.append(f"{line.type}: {line.text}"))
        page.on("pageerror", lambda error: log.append(f"error: {error}"))

    context.on("page", added)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:
    """Add it to the report, while the pages are still open."""
    report = yield
    if call.when == "call" and report.failed:
        for page, log in item.stash.get(PAGES, []):
            report.sections.append((f"page {page.url}", _state(page, log)))
    return report


def _state(page: Page, log: list[str]) -> str:
    try:
        shown = page.locator(SHOWN).all_inner_texts()
    except Exception as error:  # closed, or it does not answer
        shown = [repr(error)]
    return "\n".join(["shown:", *shown, "logged:", *log[-LINES:]])
