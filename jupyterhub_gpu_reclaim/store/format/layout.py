"""The names of the store's objects, and the sizes in its format. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from jupyterhub_gpu_reclaim.common.bounds import IDENTIFIER

#: The object that tells this store from an empty place.
IDENTITY = "identity"
MANIFESTS = "manifests/"
PACKS = "packs/"
INTENTS = "writing/"
DELETION_LOCKS = "removing/"
MARKS = "marks/"
#: Prefix of objects that have no name yet; what is left there are remains.
ASIDE = "tmp/"

#: Bytes that a chunk may have.
CHUNK_SIZES = tuple(4096 << shift for shift in range(7))

_MARK = re.compile(rf"{MARKS}{IDENTIFIER.pattern}/([0-9]{{10}})-([0-9]{{10}})")


class MarkNumber(NamedTuple):
    term: int  #: of the service that has given it
    word: int  #: of that service


def is_id(checkpoint: str) -> bool:
    return IDENTIFIER.fullmatch(checkpoint) is not None


def manifest(checkpoint: str) -> str:
    """The object that makes a checkpoint exist."""
    return f"{MANIFESTS}{checkpoint}"


def intent(checkpoint: str) -> str:
    return f"{INTENTS}{checkpoint}"


def deletion_lock(checkpoint: str) -> str:
    return f"{DELETION_LOCKS}{checkpoint}"


def pack_prefix(checkpoint: str) -> str:
    return f"{PACKS}{checkpoint}/"


def pack(checkpoint: str, number: int) -> str:
    return f"{pack_prefix(checkpoint)}{number:08x}"


def index(checkpoint: str) -> str:
    """The object that lists a checkpoint's files."""
    return f"{pack_prefix(checkpoint)}index"


def mark_prefix(checkpoint: str) -> str:
    return f"{MARKS}{checkpoint}/"


def mark(checkpoint: str, number: MarkNumber) -> str:
    """Name of one mark; names sort in the order of their numbers."""
    return f"{mark_prefix(checkpoint)}{number.term:010d}-{number.word:010d}"


def mark_number(name: str) -> MarkNumber | None:
    """The number in the name of a mark; None for other names."""
    found = _MARK.fullmatch(name)
    return None if found is None else MarkNumber(int(found[1]), int(found[2]))


def aside_of(name: str, mark: str) -> str:
    """Name of an object until it is finished: flat, so that no folder is made."""
    # ``mark`` tells two writers of a name apart; a name has neither ``!`` nor ``~``.
    return f"{ASIDE}{name.replace('/', '!')}~{mark}"


def id_of(name: str) -> str | None:
    """The checkpoint of an object; None for an unknown name."""
    name = name.removeprefix(ASIDE).partition("~")[0].replace("!", "/")
    for prefix in (MANIFESTS, INTENTS, DELETION_LOCKS):
        if name.startswith(prefix):
            found = name.removeprefix(prefix)
            break
    else:
        parts = name.split("/")
        inside = name.startswith((PACKS, MARKS)) and len(parts) > 2
        found = parts[1] if inside else ""
    return found if is_id(found) else None
