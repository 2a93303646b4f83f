"""The names of the store's objects, and the sizes in its format. Pure."""

from __future__ import annotations

import re

from jupyterhub_gpu_reclaim.store.backend import name_of

MANIFESTS = "manifests/"
PACKS = "packs/"
INTENTS = "writing/"
REMOVALS = "removing/"

#: What a chunk may have.
CHUNK_SIZES = tuple(4096 << shift for shift in range(7))

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_id(checkpoint: str) -> bool:
    """Whether a checkpoint may be called that."""
    return _ID.fullmatch(checkpoint) is not None


def manifest(checkpoint: str) -> str:
    """The object that makes a checkpoint exist."""
    return f"{MANIFESTS}{checkpoint}"


def intent(checkpoint: str) -> str:
    """The name of a checkpoint's intent."""
    return f"{INTENTS}{checkpoint}"


def removal(checkpoint: str) -> str:
    """The name of a checkpoint's deletion lock."""
    return f"{REMOVALS}{checkpoint}"


def pack_prefix(checkpoint: str) -> str:
    """Where a checkpoint's own packs and index stand."""
    return f"{PACKS}{checkpoint}/"


def pack(checkpoint: str, number: int) -> str:
    """One of a checkpoint's own packs."""
    return f"{pack_prefix(checkpoint)}{number:08x}"


def index(checkpoint: str) -> str:
    """The object that lists a checkpoint's files."""
    return f"{pack_prefix(checkpoint)}index"


def id_of(name: str) -> str | None:
    """The checkpoint of an object; None for an unknown name."""
    name = name_of(name)
    for prefix in (MANIFESTS, INTENTS, REMOVALS):
        if name.startswith(prefix):
            found = name.removeprefix(prefix)
            break
    else:
        parts = name.split("/")
        found = parts[1] if name.startswith(PACKS) and len(parts) > 2 else ""
    return found if is_id(found) else None
