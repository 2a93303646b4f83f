"""axe-core on a page that a browser test has open: what a person could not use.

Called by browser tests. It looks at the page as it is now, so a test shows first what
it wants to have looked at (a dialog, another width, the dark colours).
"""

from pathlib import Path
from typing import Any

import axe_playwright_python

#: The checker itself; the rest of that package is not needed.
SCRIPT = Path(axe_playwright_python.__file__).with_name("axe.min.js")
#: How bad a problem is that no page of ours may have.
BAD = ("serious", "critical")
_RUN = """async ([within, without]) => {
  const all = (selectors) => selectors.map((one) => [one]);
  const where = {include: all(within), exclude: all(without)};
  // Colours on their way to others are nobody's choice.
  const changing = (one) => one instanceof CSSTransition;
  const changes = document.getAnimations().filter(changing);
  await Promise.allSettled(changes.map((one) => one.finished));
  const found = await axe.run(where, {resultTypes: ["violations"], preload: false});
  return found.violations.flatMap((rule) => rule.nodes.map((node) => [
    node.impact || rule.impact, rule.id, node.target.join(" "), node.failureSummary]));
}"""


def problems(
    page: Any, *, within: str = "html", without: tuple[str, ...] = ()
) -> list[str]:
    """Serious and critical problems, one line each.

    ``within`` is a CSS selector, ``without`` parts in it that are not ours.
    """
    # not as an element: a page's policy may forbid scripts that are not its own
    page.evaluate(SCRIPT.read_text())
    return _bad(page.evaluate(_RUN, [[within], list(without)]))


async def problems_there(page: Any) -> list[str]:
    await page.evaluate(SCRIPT.read_text())
    return _bad(await page.evaluate(_RUN, [["html"], []]))


def _bad(found: list[list[str]]) -> list[str]:
    return [": ".join(each) for each in found if each[0] in BAD]
