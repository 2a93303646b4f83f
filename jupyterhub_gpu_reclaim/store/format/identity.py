"""A store's identity: the object that tells this store from an empty place. Pure.

``FORMAT.md``, identity. Only a holder of the master key can make one or read one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.store.format import crypto, envelope
from jupyterhub_gpu_reclaim.store.format.index import damaged

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

MAGIC = b"GRSTOID" + bytes([crypto.FORMAT])
#: Far above any of ours.
MAX_BYTES = 16 * 1024
#: Stands for a checkpoint's id where keys are wrapped; none is called so.
_PLACE = ".identity"


class StoreIdentity(Value, frozen=True, kw_only=True):
    """Id of a store."""

    id: str


def new_id() -> str:
    """An id that no other store has."""
    return secrets.token_hex(16)


def encode(identity: StoreIdentity, keys: Wrapper) -> bytes:
    """The object's bytes.

    Raises:
        StoreError: the data key cannot be wrapped now.
    """
    key = crypto.new_key()
    body = _sealer(key).seal(0, msgspec.json.encode(identity), MAGIC)
    return envelope.join(MAGIC, keys.wrap(key, _PLACE), body)


def decode(data: bytes, keys: Wrapper) -> StoreIdentity:
    """The identity.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, ``KEY_MISSING``.
    """
    sealed = envelope.split(data, MAGIC, "store's identity")
    key = keys.unwrap(sealed.key, sealed.wrapped, _PLACE)
    try:
        plain = _sealer(key).open(0, sealed.body, MAGIC)
        return decoders.json_decoder(StoreIdentity).decode(plain)
    except (crypto.Forged, msgspec.DecodeError, UnicodeDecodeError):
        raise damaged("the store's identity is not what was written") from None


def rewrap(data: bytes, keys: Wrapper) -> bytes:
    """The same under the newest master key; the same bytes where it is already.

    Raises:
        StoreError: see :func:`decode`.
    """
    sealed = envelope.split(data, MAGIC, "store's identity")
    decode(data, keys)
    wrapped = keys.wrap(keys.unwrap(sealed.key, sealed.wrapped, _PLACE), _PLACE)
    same = wrapped[0] == sealed.key
    return data if same else envelope.join(MAGIC, wrapped, sealed.body)


def _sealer(key: bytes) -> crypto.Sealer:
    return crypto.Sealer(crypto.derive(key, "identity"))
