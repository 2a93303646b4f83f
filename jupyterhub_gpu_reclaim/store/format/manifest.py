"""The manifest, which makes a checkpoint exist, sealed under a wrapped key.

Pure except for the key service that unwraps; see ``FORMAT.md``. Everything that is
read may be hostile: only the head is parsed before it is authenticated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.bounds import Count, Size
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry
from jupyterhub_gpu_reclaim.store.format import crypto, layout
from jupyterhub_gpu_reclaim.store.format.crypto import MAGIC, Origin
from jupyterhub_gpu_reclaim.store.format.index import damaged
from jupyterhub_gpu_reclaim.store.format.keys import MAX_WRAPPED

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

#: Far above any manifest of ours; a hostile one must not fill the memory.
MAX_BYTES = 64 * 1024 * 1024
_MAX_KEY_NAME = 64
_KEY_NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class PackRef(msgspec.Struct, frozen=True, array_like=True):
    origin: Count  #: place in the list of origins
    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    length: Size


class Body(Value, frozen=True, kw_only=True):
    """The part that only a holder of the key can read or write."""

    info: CheckpointInfo
    chunk_bytes: int
    id_key: bytes
    origins: list[Origin]  #: the checkpoint itself first
    packs: list[PackRef]
    index: Size  #: length of the index as it is stored

    def __repr__(self) -> str:
        return f"Body({self.info.id})"

    def pack_name(self, pack: PackRef) -> str:
        return layout.pack(self.origins[pack.origin].id, pack.number)

    def objects(self) -> list[Entry]:
        """Every object needed to read the checkpoint, except the manifest."""
        packs = [Entry(self.pack_name(pack), pack.length) for pack in self.packs]
        return [*packs, Entry(layout.index(self.info.id), self.index)]


def encode(body: Body, keys: Wrapper) -> bytes:
    origin = body.origins[0]
    sealer = crypto.Sealer(crypto.manifest_key(origin.data_key, origin.id))
    sealed = sealer.seal(0, msgspec.json.encode(body), crypto.bound_manifest(origin.id))
    return _join(origin.data_key, origin.id, sealed, keys)


def decode(data: bytes, checkpoint: str, keys: Wrapper) -> Body:
    """The manifest of that checkpoint.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``: not what was written, or of another
            checkpoint; ``OTHER_VERSION``; ``KEY_MISSING``.
    """
    sealed = split(data)
    return _open(
        sealed, keys.unwrap(sealed.key, sealed.wrapped, checkpoint), checkpoint
    )


def rewrap(data: bytes, checkpoint: str, keys: Wrapper) -> bytes:
    """Under the newest master key; the body's bytes stay. Raises as :func:`decode`."""
    sealed = split(data)
    data_key = keys.unwrap(sealed.key, sealed.wrapped, checkpoint)
    _open(sealed, data_key, checkpoint)
    return _join(data_key, checkpoint, sealed.body, keys)


class Sealed(NamedTuple):
    key: str  #: name of the master key
    wrapped: bytes
    body: bytes


def split(data: bytes) -> Sealed:
    """A manifest's parts, unauthenticated.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, it is none of ours; ``OTHER_VERSION``.
    """
    view = memoryview(data)
    if bytes(view[:7]) != MAGIC[:7] or len(view) == 7:
        raise damaged("the manifest is none of ours")
    if bytes(view[7:8]) != MAGIC[7:]:
        what = "The manifest"
        raise StoreError(
            Reason.OTHER_VERSION, what=what, version=view[7], known=MAGIC[7]
        )
    at, parts = len(MAGIC), []
    for limit in (_MAX_KEY_NAME, MAX_WRAPPED):
        length = int.from_bytes(view[at : at + 2], "little")
        part = bytes(view[at + 2 : at + 2 + length])
        if not 0 < length <= limit or len(part) != length:
            raise damaged("the manifest's head cannot be read")
        parts.append(part)
        at += 2 + length
    if not _KEY_NAME.fullmatch(parts[0]):
        raise damaged("the manifest's head cannot be read")
    return Sealed(parts[0].decode("ascii"), parts[1], bytes(view[at:]))


def _join(data_key: bytes, checkpoint: str, body: bytes, keys: Wrapper) -> bytes:
    name, wrapped = keys.wrap(data_key, checkpoint)
    head = b"".join(
        len(part).to_bytes(2, "little") + part for part in (name.encode(), wrapped)
    )
    return MAGIC + head + body


def _open(sealed: Sealed, data_key: bytes, checkpoint: str) -> Body:
    sealer = crypto.Sealer(crypto.manifest_key(data_key, checkpoint))
    try:
        plain = sealer.open(0, sealed.body, crypto.bound_manifest(checkpoint))
    except crypto.Forged:
        raise damaged("the manifest is not what was written") from None
    try:
        body = decoders.json_decoder(Body).decode(plain)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise damaged(f"the manifest cannot be read ({error})") from None
    _check(body, checkpoint)
    return body


def _check(body: Body, checkpoint: str) -> None:
    origins = body.origins
    if not origins or {body.info.id, origins[0].id} != {checkpoint}:
        raise damaged("the manifest is of another checkpoint")
    if any(origin.key != body.info.key for origin in origins):
        raise damaged("the manifest needs something of another session")
    if not all(layout.is_id(origin.id) for origin in origins):
        raise damaged("the manifest names an object that cannot be")
    size = body.chunk_bytes
    if size not in layout.CHUNK_SIZES or any(
        pack.origin >= len(origins) for pack in body.packs
    ):
        raise damaged("the manifest has a number that cannot be")
