"""The reference cannot rot: every setting and reason is documented, by test."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.reasons import Reason

ROOT = Path(__file__).parents[1]
generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))


@pytest.mark.parametrize("page", ["reasons", "settings"])
def test_reference_page_is_what_the_code_says(page: str) -> None:
    written = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    assert written == generate[page](), "run .venv/bin/python docs/generate.py"


@pytest.mark.parametrize(
    ("configured", "name", "trait"),
    [
        (configured.__name__, name, trait)
        for classes in generate["CONFIGURED"].values()
        for configured in classes
        for name, trait in generate["own_traits"](configured).items()
    ],
)
def test_setting_has_help_that_says_something(
    configured: str, name: str, trait: object
) -> None:
    assert len(str(trait.help)) > 40, f"{configured}.{name}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_reason_is_a_sentence_with_a_stable_code(reason: Reason) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", reason.value)
    assert reason.template.endswith((".", "}"))
    assert reason.sentence()


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
