"""A part of a store: the packs that one of several verifications reads.

A pack belongs to the part that its name says, whatever else is in the store. So ``1/7``
to ``7/7``, read in any order and on any days, have read every pack that was there all
the time exactly once.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_WRITTEN = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")


class Subset(NamedTuple):
    """The ``number``-th of ``of`` parts, counted from 1; written ``2/7``."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Subset:
        """Parse ``2/7``.

        Raises:
            ValueError: malformed, or there is no such part.
        """
        found = _WRITTEN.fullmatch(text)
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
