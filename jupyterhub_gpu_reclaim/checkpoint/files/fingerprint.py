"""Tells cheaply whether a file's contents are the same as before.

Used for the files that a session has mapped. A library's build ID stands for its
contents (the linker makes it from them); anything else is hashed, once per version.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from typing import Final

from blake3 import blake3

#: Files above this are not read; a change of their time then counts as a change.
MAX_HASHED_BYTES: Final = 1 << 30

_CACHE_ENTRIES: Final = 4096
_NOTE_SEGMENT: Final = 4
_GNU_BUILD_ID: Final = 3
_HEADERS_BYTES: Final = 1 << 16

_cache: OrderedDict[tuple[int, ...], str] = OrderedDict()


def digest(descriptor: int) -> str:
    """What stands for the contents of an open regular file; empty when too large."""
    status = os.fstat(descriptor)
    key = (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    known = _cache.get(key)
    if known is None:
        known = _build_id(descriptor) or _hash(descriptor, status.st_size)
        _cache[key] = known
        while len(_cache) > _CACHE_ENTRIES:
            _cache.popitem(last=False)
    return known


def _hash(descriptor: int, size: int) -> str:
    if size > MAX_HASHED_BYTES:
        return ""
    hasher = blake3(max_threads=blake3.AUTO)
    at = 0
    while block := os.pread(descriptor, 1 << 20, at):
        hasher.update(block)
        at += len(block)
    return f"blake3:{hasher.hexdigest()}"


def _build_id(descriptor: int) -> str:
    """The GNU build ID of an ELF file of this machine's byte order, or nothing."""
    head = os.pread(descriptor, _HEADERS_BYTES, 0)
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[5] != 1:
        return ""
    wide = head[4] == 2
    offset, size, count = (
        (*struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54))
        if wide
        else (*struct.unpack_from("<I", head, 28), *struct.unpack_from("<HH", head, 42))
    )
    for index in range(count):
        at = offset + index * size
        if at + size > len(head) or size < (56 if wide else 32):
            return ""
        if struct.unpack_from("<I", head, at)[0] != _NOTE_SEGMENT:
            continue
        start, length = (
            (
                struct.unpack_from("<Q", head, at + 8)[0],
                struct.unpack_from("<Q", head, at + 32)[0],
            )
            if wide
            else (
                struct.unpack_from("<I", head, at + 4)[0],
                struct.unpack_from("<I", head, at + 16)[0],
            )
        )
        if start > 1 << 62:
            return ""
        found = _note(os.pread(descriptor, min(length, _HEADERS_BYTES), start))
        if found:
            return found
    return ""


def _note(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = notes[at + 12 : at + 12 + name_size].rstrip(b"\0")
        start = at + 12 + (name_size + 3 & ~3)
        if kind == _GNU_BUILD_ID and name == b"GNU" and start + size <= len(notes):
            return f"build-id:{notes[start : start + size].hex()}"
        at = start + (size + 3 & ~3)
    return ""
