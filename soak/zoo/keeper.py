"""In a kernel: brings an animal to life and tells of it, one line of JSON at a time."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from typing import Any, Protocol


class Inhabitant(Protocol):
    """What every animal can do."""

    def look(self) -> tuple[str, int]:
        """A digest of what it holds, and a number that only grows."""

    def work(self) -> None:
        """Change what it holds."""


_mine: list[Inhabitant] = []


def digest(*parts: Any) -> str:
    """Of bytes, buffers and whatever else has a ``repr``."""
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(
            part if isinstance(part, bytes | memoryview) else repr(part).encode()
        )
        found.update(b"\0")
    return found.hexdigest()


def begin(home: str) -> None:
    """Bring the animal of that module and class to life."""
    module, _, name = home.partition(":")
    made = getattr(importlib.import_module(f"soak.zoo.{module}"), name)
    _mine[:] = [made()]
    tell()


def work() -> None:
    """Let it change, then tell of it."""
    _mine[0].work()
    tell()


def end() -> None:
    """Remove what outlives its process, where no session's end does that."""
    getattr(_mine[0], "end", lambda: None)()


def tell() -> None:
    """Print what it holds, as JSON."""
    fixed, grown = _mine[0].look()
    print(json.dumps({"pid": os.getpid(), "digest": fixed, "grown": grown}))
