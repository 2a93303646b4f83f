"""Pieces of Markdown, for ``generate.py``."""

from __future__ import annotations


def table(*rows: tuple[object, ...]) -> list[str]:
    """A table of Markdown; the first row is its head."""
    lines = ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def cell(value: object) -> str:
    """As one line that a table's cell can hold."""
    return " ".join(str(value).split()).replace("|", "\\|")


def page(title: str, about: str, *lines: str) -> str:
    """A whole page."""
    return "\n".join([f"# {title}", "", *about.strip().splitlines(), "", *lines]) + "\n"
