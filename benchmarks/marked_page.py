"""Tables of a page in ``docs/``, which the programs that measured them write anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

END = "<!-- end -->"


def put(page: Path, mark: str, table: str) -> None:
    """Write a table between ``<!-- mark -->`` and the end mark behind it.

    Raises:
        ValueError: the page has no such place.
    """
    before, _, after = _parts(page, mark)
    page.write_text(f"{before}{table}\n{after}")


def lines(page: Path, mark: str) -> list[str]:
    """The lines that stand there now.

    Raises:
        ValueError: the page has no such place.
    """
    return _parts(page, mark)[1].splitlines()


def _parts(page: Path, mark: str) -> tuple[str, str, str]:
    begin = f"<!-- {mark} -->\n"
    before, _, rest = page.read_text().partition(begin)
    inside, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} has no {begin.strip()} with its {END}")
    return before + begin, inside, end + after
