"""Write what lies on a session's private file systems as a tar stream.

Called by the agent after CRIU's dump (which leaves ``link_remap.N`` files behind that
belong to it), while the tree is stopped: for each private tmpfs, and for the upper
folder of an overlay that is the session's root. ``unarchive`` is the way back. It never
writes to a disk, never holds more than a block in memory, never follows a link and
never leaves the mount.

The format is POSIX pax with numeric owners; see ``tarformat`` for what we add: exact
times, extended attributes, holes that stay holes, and a last entry.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from jupyterhub_gpu_reclaim.engine.confined import (
    names_in,
    open_beneath,
    open_in_root,
    open_root,
)
from jupyterhub_gpu_reclaim.engine.holes import Content, extents, open_again
from jupyterhub_gpu_reclaim.engine.tarformat import (
    BLOCK_BYTES,
    END,
    OPAQUE,
    attribute_header,
    extents_header,
    time_header,
)
from jupyterhub_gpu_reclaim.errors import Refused, RolledBack
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.engine.mounts import Mount

_OVERLAY: Final = ("trusted.overlay.", "user.overlay.")
#: With these an upper folder alone does not say what the merged one holds.
_OVERLAY_INDIRECT: Final = frozenset({"redirect", "metacopy"})


_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_NO_FOLDER: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENOENT})
_TYPES: Final = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


class Writer(Protocol):
    """Where the stream goes; what it raises ends the archive."""

    def __call__(self, buffer: bytes, /) -> object:
        """Take the next bytes."""


class Packed(NamedTuple):
    """What an archive holds."""

    entries: int
    bytes: int  #: length of the stream
    notes: tuple[str, ...]  #: what was left out, each a sentence for the log


def open_mount(pid: int, mount: Mount) -> int:
    """The top folder of a mount that a process sees, as a descriptor.

    Raises:
        Refused: it is not there, or something else is (``no_tree``).
    """
    try:
        root = open_root(f"/proc/{pid}/root")
        try:
            target = os.fsencode(mount.target)
            folder = open_in_root(root, target, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(root)
    except OSError as error:
        raise Refused(Reason.NO_TREE, detail=f"{mount.target}: {error}") from None
    device = os.fstat(folder).st_dev
    if mount.kind == "tmpfs" and mount.device != (
        f"{os.major(device)}:{os.minor(device)}"
    ):
        os.close(folder)
        raise Refused(Reason.NO_TREE, detail=f"{mount.target} is not that mount")
    return folder


def pack(folder: int, write: Writer, *, overlay: bool = False) -> Packed:
    """Stream everything below a folder, the folder's own owner and mode included.

    Args:
        folder: a descriptor, as :func:`open_mount` gives it; it stays open.
        write: takes the stream.
        overlay: the folder is an overlay's upper one; whiteouts and opaque folders
            are kept.

    Raises:
        RolledBack: something cannot be read (``capture_failed``). Errors of ``write``
            come through as they are.
    """
    packer = _Packer(folder, write, overlay=overlay)
    return packer.run()


class _Sink:
    """The file that tarfile wants, over a function that takes buffers."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self.position = 0
        #: what the sink raised is told apart from what the session's files raised
        self.error: BaseException | None = None

    def tell(self) -> int:
        return self.position

    def write(self, data: bytes) -> int:
        try:
            self._write(data)
        except BaseException as error:
            self.error = error
            raise
        self.position += len(data)
        return len(data)


class _Packer:
    """One run of :func:`pack`."""

    def __init__(self, folder: int, write: Writer, *, overlay: bool) -> None:
        self._folder = folder
        self._overlay = overlay
        self._sink = _Sink(write)
        self._links: dict[tuple[int, int], str] = {}
        self._notes: list[str] = []
        self._entries = 0

    def run(self) -> Packed:
        try:
            with tarfile.TarFile(
                fileobj=cast("IO[bytes]", self._sink),  # tell and write suffice
                mode="w",
                format=tarfile.PAX_FORMAT,
                encoding="utf-8",
                errors="surrogateescape",
                copybufsize=BLOCK_BYTES,
            ) as tar:
                for path in self._walk():
                    self._add(tar, path)
                end = tarfile.TarInfo("end")
                end.pax_headers = {END: "1"}
                tar.addfile(end)
        except OSError as error:
            if self._sink.error is not None:
                raise
            raise _failed(f"{error.strerror}: {error.filename}") from None
        return Packed(self._entries, self._sink.position, tuple(self._notes))

    def _walk(self) -> Iterator[bytes]:
        """Every path, depth first, a folder before what it holds."""
        waiting = [b"."]
        while waiting:
            path = waiting.pop()
            yield path
            try:
                folder = open_beneath(self._folder, path, _FOLDER)
            except OSError as error:
                if error.errno in _NO_FOLDER:
                    continue
                raise
            try:
                names = sorted(names_in(folder), reverse=True)
            finally:
                os.close(folder)
            waiting += [name if path == b"." else path + b"/" + name for name in names]

    def _add(self, tar: tarfile.TarFile, path: bytes) -> None:
        try:
            entry = open_beneath(self._folder, path, os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return  # another mount, which is archived itself or not ours
            if error.errno == errno.ENOENT:
                return  # CRIU or a program outside has removed it meanwhile
            raise
        try:
            info = self._describe(path, entry)
            if info is None:
                return
            self._entries += 1
            if info.isreg():
                with open_again(entry) as file:
                    holes = extents(file, info.size)
                    if holes is not None:
                        more = extents_header(info.size, holes)
                        info.pax_headers = {**info.pax_headers, **more}
                    parts = [(0, info.size)] if holes is None else holes
                    info.size = sum(length for _, length in parts)
                    tar.addfile(info, Content(file, parts))
            else:
                tar.addfile(info)
        finally:
            os.close(entry)

    def _describe(self, path: bytes, entry: int) -> tarfile.TarInfo | None:
        """The header of one entry; None when it is left out."""
        status = os.fstat(entry)
        info = tarfile.TarInfo(os.fsdecode(path))
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = status.st_uid, status.st_gid
        info.pax_headers = time_header(status.st_mtime_ns)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFCHR and self._overlay and status.st_rdev == 0:
            info.type = tarfile.CHRTYPE
            return info
        if kind not in _TYPES:
            what = "socket" if kind == stat.S_IFSOCK else "device"
            self._notes.append(f"The {what} {info.name} was left out.")
            return None
        info.type = _TYPES[kind]
        if info.issym():
            info.linkname = os.fsdecode(os.readlink(b"", dir_fd=entry))
            return info
        if self._attributes(info, entry):
            info.type = tarfile.CHRTYPE
            return info
        identity = (status.st_dev, status.st_ino)
        first = self._links.setdefault(identity, info.name)
        if status.st_nlink > 1 and not info.isdir() and first != info.name:
            info.type, info.linkname = tarfile.LNKTYPE, first
        elif info.isreg():
            info.size = status.st_size
        if status.st_nlink <= 1 or info.isdir():
            self._links.pop(identity, None)
        return info

    def _attributes(self, info: tarfile.TarInfo, entry: int) -> bool:
        """Add the extended attributes; true when they make it a whiteout."""
        whiteout = False
        headers = dict(info.pax_headers)
        path = f"/proc/self/fd/{entry}"
        for name in os.listxattr(path):
            value = os.getxattr(path, name)
            prefix = next((p for p in _OVERLAY if name.startswith(p)), "")
            if not (prefix and self._overlay):
                headers |= attribute_header(name, value)
                continue
            what = name.removeprefix(prefix)
            if what in _OVERLAY_INDIRECT:
                raise _failed(f"{info.name} is kept by the overlay as a {what}")
            if what == "opaque" and value == b"y":
                headers[OPAQUE] = "1"
            whiteout = whiteout or what == "whiteout"
        info.pax_headers = headers
        return whiteout


def _failed(why: str) -> RolledBack:
    return RolledBack(Reason.CAPTURE_FAILED, why=why)
