"""Output of our commands: tables for people, JSON for programs, progress beside both.

Results go to the standard output, everything else to the standard error output. Users'
names are data: control characters in them have no effect on a terminal.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from jupyterhub_gpu_reclaim.common.text import plain, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.common.models import Failure, Finding

#: Width without a terminal, so that no line is broken.
_WIDE = 400
#: Bars that are shown at a time; a screen has no room for a thousand.
MOST_BARS = 12
_COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TaskProgressColumn(),
    TimeRemainingColumn(),
)


def print_json(value: Any) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(text + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: str = ""
) -> None:
    """Print a table; columns whose names are in ``right`` are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right.split() else "left")
    for row in rows:
        table.add_row(*[Text(plain(each)) for each in row])
    width = None if sys.stdout.isatty() else _WIDE
    Console(file=sys.stdout, width=width, highlight=False).print(table)


def say(line: str) -> None:
    sys.stdout.write(plain(line) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere; call it with done and total."""
    with Bars() as shown:

        def show(done: int, total: int) -> None:
            shown.show(title, "", done, total, in_bytes=False)

        show(0, 0)
        yield show


class Bars(Progress):
    """Bars by name, each with its step; nothing where there is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        there = console.is_terminal
        super().__init__(*_COLUMNS, console=console, transient=True, disable=not there)
        self._named: dict[str, TaskID] = {}

    def show(
        self, name: str, what: str, done: int, total: int, *, in_bytes: bool = True
    ) -> None:
        """At most ``MOST_BARS``; a total of 0 is unknown."""
        amount = f"  {size(done)} of {size(total)}" if in_bytes and total else ""
        text = plain(f"{name}  {what}{amount}")
        if name not in self._named and len(self._named) < MOST_BARS:
            self._named[name] = self.add_task(text, total=None)
        if (bar := self._named.get(name)) is not None:
            self.update(bar, description=text, completed=done, total=total or None)

    def end(self, name: str) -> None:
        if name in self._named:
            self.remove_task(self._named.pop(name))


def local_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def complain(line: str) -> None:
    sys.stderr.write(plain(line) + "\n")


def say_findings(findings: Iterable[Finding], indent: str = "") -> None:
    for finding in findings:
        say(f"{indent}{'Error' if finding.fatal else 'Note'}: {finding.message}")
        if finding.hint:
            say(f"{indent}  {finding.hint}")


def complain_of(what: object, failure: Failure | Finding) -> None:
    complain(f"Error: {what}: {failure.message} ({failure.code})")
    if failure.hint:
        complain(f"  {failure.hint}")
