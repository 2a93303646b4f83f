"""What a checkpoint consists of, as JSON that is checked when it is read.

Called by the writer and the repository. Pure: values to bytes and back; the bytes'
meaning stands in ``FORMAT.md``. Everything that is read may be damaged or hostile.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec
from blake3 import blake3

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.models import CheckpointInfo, Value
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store.codec import MAX_CHUNK_BYTES, Kind

FORMAT = 0

T = TypeVar("T")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_MAX_NAME = 255


class ObjectRef(Value, frozen=True, kw_only=True):
    """An object of the backend, with what it must hold."""

    name: str
    length: _Count
    digest: str  #: BLAKE3 of all its bytes, in hex


class ChunkRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one chunk of a file stands; an array in JSON, for there are many."""

    kind: Kind
    pack: _Count  #: number in the manifest's list of packs
    offset: _Count
    stored: _Count  #: bytes in the pack
    length: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)]  #: plain bytes
    digest: str  #: BLAKE3 of the plain bytes, in hex; empty for zeros


class FileEntry(Value, frozen=True, kw_only=True):
    """One file of a checkpoint."""

    name: str
    length: _Count
    chunks: list[ChunkRef]


class Body(Value, frozen=True, kw_only=True):
    """What the manifest's digest vouches for."""

    info: CheckpointInfo
    packs: list[ObjectRef]
    index: ObjectRef


class _Envelope(Value, frozen=True, kw_only=True):
    format: int
    digest: str
    body: msgspec.Raw


def is_name(name: str) -> bool:
    """Whether a file may be called that: it cannot leave its folder."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def encode_manifest(body: Body) -> bytes:
    """The manifest's bytes, ended by a newline for whoever looks at it."""
    inner = msgspec.json.encode(body)
    envelope = _Envelope(
        format=FORMAT, digest=blake3(inner).hexdigest(), body=msgspec.Raw(inner)
    )
    return msgspec.json.encode(envelope) + b"\n"


def decode_manifest(data: bytes, checkpoint: str) -> Body:
    """The manifest of that checkpoint.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``: not what was written, of a newer format,
            or of another checkpoint.
    """
    envelope = _decode(data, _Envelope, "the manifest")
    if envelope.format != FORMAT:
        raise damaged(f"its format {envelope.format} is not known to this version")
    if blake3(bytes(envelope.body)).hexdigest() != envelope.digest:
        raise damaged("the manifest's digest differs")
    body = _decode(bytes(envelope.body), Body, "the manifest")
    if body.info.id != checkpoint:
        raise damaged("the manifest is of another checkpoint")
    for ref in (*body.packs, body.index):
        if not is_name(ref.name):
            raise damaged("the manifest names an object that cannot be")
    return body


def encode_index(files: list[FileEntry]) -> bytes:
    """The index's bytes."""
    return msgspec.json.encode(files)


def decode_index(data: bytes, body: Body) -> list[FileEntry]:
    """The files of a checkpoint, whose every chunk lies within its packs.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, with what does not fit.
    """
    check_object(data, body.index)
    files = _decode(data, list[FileEntry], "the index")
    names = {file.name for file in files}
    if len(names) != len(files) or not all(map(is_name, names)):
        raise damaged("the index has names that cannot be")
    for file in files:
        if sum(chunk.length for chunk in file.chunks) != file.length:
            raise damaged(f"the index has not all of {file.name}")
        if not all(_fits(chunk, body.packs) for chunk in file.chunks):
            raise damaged(f"the index has a chunk of {file.name} that cannot be")
    return files


def check_object(data: bytes, ref: ObjectRef) -> None:
    """See that an object that was read whole is what was written.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``.
    """
    if len(data) != ref.length:
        raise damaged(f"{ref.name} has {len(data)} bytes instead of {ref.length}")
    if blake3(data).hexdigest() != ref.digest:
        raise damaged(f"the digest of {ref.name} differs")


def damaged(why: str) -> StoreError:
    """The error for a checkpoint that is not what was written."""
    return StoreError(Reason.CHECKPOINT_DAMAGED, why=why)


def _fits(chunk: ChunkRef, packs: list[ObjectRef]) -> bool:
    if chunk.kind is Kind.ZERO:
        return not (chunk.pack or chunk.offset or chunk.stored or chunk.digest)
    if chunk.pack >= len(packs):
        return False
    if chunk.kind is Kind.RAW and chunk.stored != chunk.length:
        return False
    if chunk.kind is Kind.LZ4 and chunk.stored >= chunk.length:
        return False
    return chunk.offset + chunk.stored <= packs[chunk.pack].length


def _decode(data: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise damaged(f"{what} cannot be read ({error})") from None
