"""A patch: which name stands for what while a mutant runs."""

from __future__ import annotations

from typing import Any

Patch = tuple[Any, str, Any]


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def yes(*_: Any, **__: Any) -> bool:
    """Always."""
    return True
