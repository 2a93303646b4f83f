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
    begin, text = f"<!-- {mark} -->", page.read_text()
    before, _, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} has no {begin} with its {END}")
    page.write_text(f"{before}{begin}\n{table}\n{END}{after}")
