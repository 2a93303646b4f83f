"""A mark: the last word about a checkpoint, sealed for its place. Pure.

``FORMAT.md``, marks. Its key comes from the checkpoint's data key: anyone who can read
the manifest can read the mark, and a new master key changes nothing here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.models import Mark
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format.index import damaged

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.format.crypto import Origin

MAGIC = b"GRSMARK" + bytes([crypto.FORMAT])
#: Far above any of ours.
MAX_BYTES = 4096
_SALT_BYTES = 16


def encode(said: Mark, name: str, origin: Origin) -> bytes:
    """The bytes of the object of that name; ``origin`` has the data key."""
    salt = os.urandom(_SALT_BYTES)
    plain = msgspec.json.encode(said)
    return MAGIC + salt + _sealer(salt, name, origin).seal(0, plain, MAGIC)


def decode(data: bytes, name: str, origin: Origin) -> Mark:
    """Open a mark.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``: not what was written, or not for this place.
    """
    head = len(MAGIC) + _SALT_BYTES
    salt, sealed = data[len(MAGIC) : head], data[head:]
    if data[: len(MAGIC)] != MAGIC or len(sealed) < crypto.TAG_BYTES:
        raise damaged(f"{name} is not a mark that this version knows")
    try:
        plain = _sealer(salt, name, origin).open(0, sealed, MAGIC)
        return decoders.json_decoder(Mark).decode(plain)
    except (
        crypto.Forged,
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):
        raise damaged(f"{name} is not what was written") from None


def _sealer(salt: bytes, name: str, origin: Origin) -> crypto.Sealer:
    # A key of its own for each attempt: two may send different words under one name.
    key = crypto.derive(origin.data_key, "mark", origin.id, name, salt.hex())
    return crypto.Sealer(key)
