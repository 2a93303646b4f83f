"""Makes deleted files again, without a name, as the task that had them open.

CRIU would make such a file by its former path, as root, and remove that name again.
Here it is a file without a name from the beginning (O_TMPFILE), made with the rights of
its holder in the folder where it was, or in ``/tmp`` where that is gone or closed.
Where a file system has no such files (NFS), a new name is taken for a moment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Where it goes when its own folder is gone.
_ELSEWHERE: Final = b"/tmp"
_U32: Final = struct.Struct("<I")
_BLOCK: Final = 1 << 20
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})


class Ghost:
    """The image of one deleted file.

    Args:
        buffers: of ``ghost-file-N.img``, in order.

    Raises:
        RestoreFailed: it is off (``checkpoint_damaged``).
    """

    def __init__(self, buffers: Iterable[bytes | memoryview]) -> None:
        self._stream = _Stream(iter(buffers))
        head = self._stream.read(8)
        if head != _U32.pack(images.COMMON_MAGIC) + _U32.pack(images.GHOST_MAGIC):
            raise images.damaged("a deleted file has no head")
        self.entry: Any = self._message("ghost_file_entry")

    def make(self, root: int, path: bytes) -> int:
        """An empty file of that kind, without a name; called inside of ``run_as``.

        Args:
            root: of the session.
            path: that it had.

        Raises:
            RestoreFailed: its holder may make none, or it is of another kind.
        """
        parent = path.rpartition(b"/")[0] or b"/"
        failure = "no folder takes it"
        for place in (parent, _ELSEWHERE):
            try:
                folder = open_in_root(root, place, os.O_PATH | os.O_DIRECTORY)
            except OSError as error:
                failure = error.strerror or failure
                continue
            try:
                return self._make(folder, path)
            except OSError as error:
                failure = error.strerror or failure
            finally:
                os.close(folder)
        raise refused(Reason.FILE_DENIED, path, failure)

    def fill(self, descriptor: int) -> None:
        """Put its contents in."""
        if not stat.S_ISREG(self.entry.mode):
            return
        if not self.entry.chunks:
            at = 0
            while block := self._stream.read(_BLOCK):
                at += os.pwrite(descriptor, block, at)
            return
        os.ftruncate(descriptor, self.entry.size)
        while self._stream.has_more():
            chunk = self._message("ghost_chunk_entry")
            at, end = chunk.off, chunk.off + chunk.len
            if end > self.entry.size:
                raise images.damaged("a deleted file is longer than it was")
            while at < end:
                block = self._stream.read(min(_BLOCK, end - at))
                if not block:
                    raise images.damaged("a deleted file is cut off")
                at += os.pwrite(descriptor, block, at)

    def finish(self, descriptor: int) -> None:
        """Its mode and times, once it is open everywhere; inside of ``run_as``."""
        path = again(descriptor)
        # What its holder may not set is left away, as chmod(2) does it.
        os.chmod(path, stat.S_IMODE(self.entry.mode))  # noqa: PTH101
        if self.entry.HasField("mtim"):
            times = (_nanoseconds(self.entry.atim), _nanoseconds(self.entry.mtim))
            os.utime(path, ns=times)

    def _make(self, folder: int, path: bytes) -> int:
        kind = stat.S_IFMT(self.entry.mode)
        if kind == stat.S_IFREG:
            with contextlib.suppress(_NoTmpfile):
                return _tmpfile(again(folder))
        name = b".reclaim-" + secrets.token_hex(8).encode()
        flags = os.O_PATH | os.O_NOFOLLOW
        os.fchdir(folder)  # this thread's own
        if kind == stat.S_IFREG:
            made = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        elif kind == stat.S_IFDIR:
            os.mkdir(name, 0o700)  # noqa: PTH102
            made = os.open(name, flags)
            os.rmdir(name)  # noqa: PTH106
            return made
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600)
            made = os.open(name, flags)
        else:
            raise refused(Reason.FILE_DENIED, path, "it was deleted and is no file")
        os.unlink(name)  # noqa: PTH108
        return made

    def _message(self, kind: str) -> Any:
        head = self._stream.read(_U32.size)
        if len(head) != _U32.size or _U32.unpack(head)[0] > images.MAX_ENTRY_BYTES:
            raise images.damaged("a deleted file has an entry that is off")
        return images.parse(kind, self._stream.read(_U32.unpack(head)[0]))


class _NoTmpfile(Exception):
    """This file system makes no files without a name."""


def _tmpfile(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno in _NO_TMPFILE:
            raise _NoTmpfile from None
        raise


def _nanoseconds(time: Any) -> int:
    return int(time.tv_sec * 1_000_000_000 + time.tv_usec * 1000)


class _Stream:
    """Buffers, read like a file."""

    def __init__(self, buffers: Iterator[bytes | memoryview]) -> None:
        self._buffers = buffers
        self._rest = memoryview(b"")

    def has_more(self) -> bool:
        while not self._rest:
            following = next(self._buffers, None)
            if following is None:
                return False
            self._rest = memoryview(following).cast("B")
        return True

    def read(self, size: int) -> bytes:
        """That many bytes, or what is left."""
        out = bytearray()
        while len(out) < size and self.has_more():
            take = self._rest[: size - len(out)]
            out += take
            self._rest = self._rest[len(take) :]
        return bytes(out)
