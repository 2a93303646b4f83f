"""A master key that is made from a passphrase, for exports in one file.

The salt is in the key's name, which a manifest's head tells, so that the file needs
nothing beside it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import BadRequest, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

#: scrypt (RFC 7914): 64 MiB and about 0.2 s for each guess.
_COST = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 128 * 1024 * 1024, "dklen": 32}
_NAME = re.compile(r"scrypt-([0-9a-f]{32})")
_SHORTEST = 8


class Passphrase:
    """See :class:`~.keys.Wrapper`.

    Args:
        words: the passphrase; never shown.

    Raises:
        BadRequest: it is shorter than 8 characters.
    """

    def __init__(self, words: str) -> None:
        if len(words) < _SHORTEST:
            what = f"A passphrase has at least {_SHORTEST} characters."
            raise BadRequest(Reason.INVALID, what=what)
        self._words = words.encode()

    def __repr__(self) -> str:
        return "Passphrase()"

    def wrap(self, data_key: bytes, checkpoint: str) -> tuple[str, bytes]:
        """Wrap under a key of a new salt."""
        return self._ring(f"scrypt-{secrets.token_hex(16)}").wrap(data_key, checkpoint)

    def unwrap(self, name: str, wrapped: bytes, checkpoint: str) -> bytes:
        """Unwrap what this passphrase has wrapped."""
        return self._ring(name).unwrap(name, wrapped, checkpoint)

    def _ring(self, name: str) -> KeyRing:
        found = _NAME.fullmatch(name)
        if found is None:
            raise StoreError(Reason.KEY_MISSING, key=name)
        salt = bytes.fromhex(found[1])
        return KeyRing({name: hashlib.scrypt(self._words, salt=salt, **_COST)})


class Rewrap:
    """Opens with one wrapper, wraps with another.

    Args:
        old: opens.
        new: wraps.
    """

    def __init__(self, old: Wrapper, new: Wrapper) -> None:
        self.wrap = new.wrap
        self.unwrap = old.unwrap
