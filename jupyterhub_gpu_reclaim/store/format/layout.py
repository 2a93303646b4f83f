"""The names of the store's objects, and the sizes in its format. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

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

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SUBSET = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")
_MARK = re.compile(rf"{MARKS}{_ID.pattern}/([0-9]{{10}})-([0-9]{{10}})")


class MarkNumber(NamedTuple):
    term: int  #: of the service that has given it
    word: int  #: of that service


class Subset(NamedTuple):
    """The ``number``-th of ``of`` parts of a store, from 1; written ``2/7``."""

    # A pack belongs to the part that its name says, whatever else is in the store. So
    # ``1/7`` to ``7/7``, read in any order and on any days, have read every pack that
    # was there all the time exactly once.

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Subset:
        """Parse ``2/7``; ValueError: malformed, or there is no such part."""
        found = _SUBSET.fullmatch(text)
        made = cls(int(found[1]), int(found[2])) if found else None
        if made is None or made.number > made.of:
            raise ValueError(f"a subset is n/m, from 1/m to m/m, not {text!r}")
        return made

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, pack: str) -> bool:
        found = hashlib.blake2b(pack.encode(), digest_size=8).digest()
        return int.from_bytes(found) % self.of == self.number - 1


ALL = Subset(1, 1)


def is_id(checkpoint: str) -> bool:
    return _ID.fullmatch(checkpoint) is not None


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
