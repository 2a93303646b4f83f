"""Sealed bytes behind the wrapped key that opens them: manifests and identities. Pure.

``FORMAT.md``, manifest: only the head is ever parsed unauthenticated.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format.index import damaged
from jupyterhub_gpu_reclaim.store.format.keys import MAX_WRAPPED

_MAX_KEY_NAME = 64
_KEY_NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Sealed(NamedTuple):
    key: str  #: name of the master key
    wrapped: bytes
    body: bytes


def join(magic: bytes, wrapped: tuple[str, bytes], body: bytes) -> bytes:
    """The object's bytes.

    Args:
        magic: 8 bytes, the last one the format's number.
        wrapped: the master key's name, and the data key as it has wrapped it.
        body: sealed under the data key.
    """
    name, key = wrapped
    head = b"".join(
        len(part).to_bytes(2, "little") + part for part in (name.encode(), key)
    )
    return magic + head + body


def split(data: bytes, magic: bytes, what: str) -> Sealed:
    """The parts, unopened and unauthenticated.

    Args:
        data: the object's bytes.
        magic: that it must begin with.
        what: name of the object in errors.

    Raises:
        StoreError: ``CHECKPOINT_DAMAGED``, it is none of ours; ``OTHER_VERSION``.
    """
    view = memoryview(data)
    if bytes(view[:7]) != magic[:7] or len(view) == 7:
        raise damaged(f"the {what} is none of ours")
    if bytes(view[7:8]) != magic[7:]:
        what = f"The {what}"
        raise StoreError(
            Reason.OTHER_VERSION, what=what, version=view[7], known=magic[7]
        )
    at, parts = len(magic), []
    for limit in (_MAX_KEY_NAME, MAX_WRAPPED):
        length = int.from_bytes(view[at : at + 2], "little")
        part = bytes(view[at + 2 : at + 2 + length])
        if not 0 < length <= limit or len(part) != length:
            raise damaged(f"the {what}'s head cannot be read")
        parts.append(part)
        at += 2 + length
    if not _KEY_NAME.fullmatch(parts[0]):
        raise damaged(f"the {what}'s head cannot be read")
    return Sealed(parts[0].decode("ascii"), parts[1], bytes(view[at:]))
