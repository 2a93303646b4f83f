"""Reads the files of a folder backend, and translates the system's errors.

Nothing here writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, NoReturn

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry

if TYPE_CHECKING:
    from pathlib import Path

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def walk(root: Path, folder: str, entries: list[Entry]) -> None:
    """Add the regular files below a folder; links and odd things are not seen."""
    try:
        with os.scandir(root / folder) as found:
            for each in found:
                name = f"{folder}/{each.name}"
                if each.is_dir(follow_symlinks=False):
                    walk(root, name, entries)
                elif each.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        size = each.stat(follow_symlinks=False).st_size
                        entries.append(Entry(name, size))
    except (FileNotFoundError, NotADirectoryError):
        return


def read_all(fd: int, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes, however the kernel cuts them up."""
    first = os.pread(fd, length, offset)
    if len(first) == length or not first:
        return first
    parts = [first]
    done = len(first)
    while done < length and (part := os.pread(fd, length - done, offset + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def read_into(fd: int, offset: int, buffer: memoryview) -> int:
    """The same into a buffer; how many bytes came."""
    done = 0
    while done < len(buffer) and (
        part := os.preadv(fd, [buffer[done:]], offset + done)
    ):
        done += part
    return done


def fail(why: str) -> NoReturn:
    """Raise ``STORE_FAILED``."""
    raise StoreError(Reason.STORE_FAILED, why=why)


def translate(
    error: OSError, name: str, needed: int = 0, folder: Path | None = None
) -> NoReturn:
    """The system's error as one of ours; a full disk is told apart."""
    detail = f"{name}: {error}"
    if error.errno in _NO_ROOM:
        free = "nothing"
        if folder is not None:
            with contextlib.suppress(OSError):
                found = os.statvfs(folder)
                free = text.size(found.f_bavail * found.f_frsize)
        more = f"{text.size(needed)} more" if needed else "more"
        raise StoreError(
            Reason.STORE_FULL, needed=more, free=free, detail=detail
        ) from error
    why = (error.strerror or "unknown error").lower()
    denied = error.errno in _DENIED
    reason = Reason.STORE_DENIED if denied else Reason.STORE_FAILED
    raise StoreError(reason, why=why, detail=detail) from error
