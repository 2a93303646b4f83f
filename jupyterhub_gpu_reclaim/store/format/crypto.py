"""All of the cryptography: derives keys, and seals bytes bound to their place.

The only user of the ciphers. Writing and reading of packs, indexes and manifests share
the associated data below, so that both bind the same ids, numbers, lengths and order,
in the terms of ``FORMAT.md``. Each key of :func:`derive` has one use only, so counting
from 0 is a safe nonce.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from jupyterhub_gpu_reclaim.common.bounds import Count, Identifier
from jupyterhub_gpu_reclaim.common.models import SessionKey, Value

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Buffer
    from jupyterhub_gpu_reclaim.store.format.compression import Kind

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12
_DOMAIN = "gpu-reclaim store 1"
FORMAT = 1
MAGIC = b"GRSTORE" + bytes([FORMAT])
_BLOCK = struct.Struct("<IBHI")


class Forged(Exception):
    """The bytes were not sealed under this key, or not for this place."""


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def derive(secret: bytes, purpose: str, *context: str) -> bytes:
    """A key for one purpose in one context; other keys reveal nothing about it."""
    parts = [part.encode() for part in (_DOMAIN, purpose, *context)]
    info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(
        secret
    )


class Sealer:
    """Seals and opens numbered pieces; ``key`` may seal each number once."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, number: int, plain: Buffer, bound: bytes) -> bytes:
        return self._cipher.encrypt(_nonce(number), plain, bound)

    def seal_into(
        self, number: int, plain: Buffer, bound: bytes, out: memoryview
    ) -> None:
        """The same into a buffer of exactly ``len(plain) + TAG_BYTES`` bytes."""
        self._cipher.encrypt_into(_nonce(number), plain, bound, out)

    def open(self, number: int, sealed: Buffer, bound: bytes) -> bytes:
        """Forged: other bytes, another number, or bound to something else."""
        try:
            return self._cipher.decrypt(_nonce(number), sealed, bound)
        except InvalidTag:
            raise Forged from None

    def open_into(
        self, number: int, sealed: Buffer, bound: bytes, out: memoryview
    ) -> None:
        """Into a buffer of exactly that size; it is void after an error (Forged)."""
        try:
            self._cipher.decrypt_into(_nonce(number), sealed, bound, out)
        except InvalidTag:
            raise Forged from None


def wrap(key: bytes, secret: bytes, bound: bytes) -> bytes:
    """A secret sealed under a long-lived key, with a random nonce."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, secret, bound)


def unwrap(key: bytes, wrapped: bytes, bound: bytes) -> bytes:
    """Undo :func:`wrap`; Forged: another key, or bound to something else."""
    nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
    if len(nonce) != _NONCE_BYTES or len(sealed) < TAG_BYTES:
        raise Forged
    try:
        return AESGCM(key).decrypt(nonce, sealed, bound)
    except InvalidTag:
        raise Forged from None


class ChunkIds:
    """Secret content ids: equal chunks have equal ids (``FORMAT.md``, chunk ids)."""

    _NONCE = bytes(_NONCE_BYTES)

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def of(self, chunks: list[memoryview]) -> bytes:
        # A call takes as long as the chunk itself: nothing else may stand in the loop.
        mac, nonce, empty = self._cipher.encrypt, self._NONCE, b""
        return b"".join([mac(nonce, empty, chunk) for chunk in chunks])


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "little")


class Origin(Value, frozen=True, kw_only=True):
    """A checkpoint that packs were written for, with the key that opens them."""

    id: Identifier
    key: SessionKey
    generation: Count
    data_key: bytes

    def __repr__(self) -> str:
        return f"Origin({self.id})"

    def pack_key(self, number: int) -> bytes:
        return self._derive("pack", number)

    def index_key(self) -> bytes:
        return self._derive("index", 0)

    def _derive(self, purpose: str, number: int) -> bytes:
        return derive(
            self.data_key,
            purpose,
            self.id,
            self.key.user,
            self.key.server,
            str(self.generation),
            str(number),
        )


def manifest_key(data_key: bytes, checkpoint: str) -> bytes:
    return derive(data_key, "manifest", checkpoint, "", "", "", "0")


def bound_manifest(checkpoint: str) -> bytes:
    return MAGIC + checkpoint.encode()


def bound_block(number: int, kind: Kind, chunks: int, length: int) -> bytes:
    """Associated data of a block: ``length`` is as stored, without the tag."""
    return _BLOCK.pack(number, kind, chunks, length)
