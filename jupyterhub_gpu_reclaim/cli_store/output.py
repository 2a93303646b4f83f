"""What the actions print: tables for people, JSON for programs, progress beside both.

Results go to the standard output, everything else to the standard error output. Names
of users are data: nothing in them is obeyed by a terminal.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Where nobody looks at it, no line is broken.
_WIDE = 400


def print_json(value: Any) -> None:
    """One JSON document."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(text + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: str = ""
) -> None:
    """A table; columns whose name stands in ``right`` are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        side = "right" if name in right.split() else "left"
        table.add_column(name, justify="right" if side == "right" else "left")
    for row in rows:
        table.add_row(*[Text(plain(each)) for each in row])
    _console().print(table)


def say(line: str) -> None:
    """A line of the result."""
    sys.stdout.write(plain(line) + "\n")


def plain(value: object) -> str:
    """As text in which nothing moves the cursor."""
    return "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value)
    )


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere; call it with done and total."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _silent
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(plain(title), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _silent(done: int, total: int) -> None:
    del done, total


def _console() -> Console:
    width = None if sys.stdout.isatty() else _WIDE
    return Console(file=sys.stdout, width=width, highlight=False)
