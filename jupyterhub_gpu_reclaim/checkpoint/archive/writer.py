"""Writes the contents of a session's private file systems as a tar stream.

It runs while the tree is stopped: for each private tmpfs, and for the upper folder of
an overlay that is the session's root. It never writes to a disk, never holds more than
a block in memory, never follows a link and never leaves the mount. What an upper folder
has only a name of ("metacopy", "redirect") is taken from the merged folder, and holes
stay holes. The format is POSIX pax with numeric owners and ``tarformat``.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from jupyterhub_gpu_reclaim.checkpoint.archive.tarformat import (
    BLOCK_BYTES,
    END,
    OPAQUE,
    attribute_header,
    extents_header,
    time_header,
)
from jupyterhub_gpu_reclaim.common.errors import Refused, RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import open_beneath, open_in_root, root_of
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from jupyterhub_gpu_reclaim.linux.mounts import Mount

#: A file in more pieces is taken as a whole: their list stands in one header.
_MAX_EXTENTS: Final = 1 << 17


class Content:
    """The data of a file, part after part; what vanished meanwhile reads as zeros."""

    def __init__(self, file: BinaryIO, parts: list[tuple[int, int]]) -> None:
        self._file = file
        self._parts = parts[::-1]
        self._seek()

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        out = bytearray()
        while len(out) < size and self._parts:
            start, length = self._parts.pop()
            wanted = min(length, size - len(out))
            data = self._file.read(wanted)
            out += data.ljust(wanted, b"\0")
            if wanted < length:
                self._parts.append((start + wanted, length - wanted))
            self._seek()
        return bytes(out)

    def _seek(self) -> None:
        if self._parts:
            self._file.seek(self._parts[-1][0])


def open_again(entry: int) -> BinaryIO:
    return Path(f"/proc/self/fd/{entry}").open("rb", buffering=0)


def extents(file: BinaryIO, size: int) -> list[tuple[int, int]] | None:
    """Find a file's data, as (offset, length); None where it is taken as a whole."""
    if os.fstat(file.fileno()).st_blocks * 512 >= size:
        return None
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # nothing but a hole up to the end
            return None
        at = min(os.lseek(file.fileno(), start, os.SEEK_HOLE), size)
        found.append((start, at - start))
        if len(found) > _MAX_EXTENTS:
            return None
    return found


_OVERLAY: Final = ("trusted.overlay.", "user.overlay.")

#: More than this are not archived: listing them would fill the agent's memory first.
MAX_ENTRIES = 2_000_000

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_NO_FOLDER: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENOENT})
_TYPES: Final = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


def open_mount(pid: int, mount: Mount) -> int:
    """The top folder of a mount that a process sees, as a descriptor.

    Raises:
        Refused: it is not there, or something else is (``no_tree``).
    """
    try:
        with root_of(pid) as root:
            target = os.fsencode(mount.target)
            folder = open_in_root(root, target, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(Reason.NO_TREE, detail=f"{mount.target}: {error}") from None
    device = os.fstat(folder).st_dev
    if mount.kind == "tmpfs" and mount.device != (
        f"{os.major(device)}:{os.minor(device)}"
    ):
        os.close(folder)
        raise Refused(Reason.NO_TREE, detail=f"{mount.target} is not that mount")
    return folder


def pack(
    folder: int, write: Callable[[bytes], object], *, merged: int | None = None
) -> tuple[str, ...]:
    """Stream everything below a folder, the folder's own owner and mode included.

    Where the folder is an overlay's upper one, ``merged`` is the top folder of what
    programs see; whiteouts and opaque folders are kept then.

    Returns:
        What was left out, each a sentence for the log.

    Raises:
        RolledBack: something cannot be read (``capture_failed``).
        ReclaimError: what ``write`` raises.
    """
    return _Packer(folder, write, merged).run()


class _Sink:
    """The file that tarfile wants, over a function that takes buffers."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._position = 0

    def tell(self) -> int:
        return self._position

    def write(self, data: bytes) -> int:
        self._write(data)
        self._position += len(data)
        return len(data)


class _Packer:
    def __init__(
        self, folder: int, write: Callable[[bytes], object], merged: int | None
    ) -> None:
        self._folder = folder
        self._merged = merged
        self._sink = _Sink(write)
        self._links: dict[tuple[int, int], str] = {}
        self._notes: list[str] = []
        self._entries = 0

    def run(self) -> tuple[str, ...]:
        try:
            with tarfile.TarFile(
                fileobj=cast("IO[bytes]", self._sink),  # tell and write suffice
                mode="w",
                format=tarfile.PAX_FORMAT,
                encoding="utf-8",
                errors="surrogateescape",
                copybufsize=BLOCK_BYTES,
            ) as tar:
                # Depth first, a folder before what it holds.
                waiting = [(self._folder, b".")]
                while waiting:
                    folder, path = waiting.pop()
                    within = self._add(tar, folder, path)
                    waiting += [(within, one) for one in _below(within, path)]
                end = tarfile.TarInfo("end")
                end.pax_headers = {END: "1"}
                tar.addfile(end)
        except OSError as error:
            raise _failed(f"{error.strerror}: {error.filename}") from error
        return tuple(self._notes)

    def _add(self, tar: tarfile.TarFile, folder: int, path: bytes) -> int:
        """Write the entry of a path below a top folder; the top of what it holds."""
        entry = _open_entry(folder, path)
        if entry is None:
            return folder
        with closing(entry):
            kept = self._kept(folder, entry)
            if "metacopy" not in kept:
                self._write(tar, path, entry, upper=self._is_upper(folder))
        if self._merged is None or not kept & {"metacopy", "redirect"}:
            return folder
        return (
            self._merged if "redirect" in kept else self._add(tar, self._merged, path)
        )

    def _is_upper(self, folder: int) -> bool:
        return self._merged is not None and folder == self._folder

    def _kept(self, folder: int, entry: int) -> frozenset[str]:
        """Names of the overlay's own attributes on an entry of the upper folder."""
        kind = stat.S_IFMT(os.fstat(entry).st_mode)
        if not self._is_upper(folder) or kind not in {stat.S_IFREG, stat.S_IFDIR}:
            return frozenset()
        names = os.listxattr(f"/proc/self/fd/{entry}")
        return frozenset(name.rpartition(".")[2] for name in names if _prefix(name))

    def _write(
        self, tar: tarfile.TarFile, path: bytes, entry: int, *, upper: bool
    ) -> None:
        info = self._describe(path, entry, upper=upper)
        if info is None:
            return
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise _too_many()
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

    def _describe(
        self, path: bytes, entry: int, *, upper: bool
    ) -> tarfile.TarInfo | None:
        status = os.fstat(entry)
        info = tarfile.TarInfo(os.fsdecode(path))
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = status.st_uid, status.st_gid
        info.pax_headers = time_header(status.st_mtime_ns)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFCHR and upper and status.st_rdev == 0:
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
        if _attributes(info, entry, upper=upper):
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


def _open_entry(folder: int, path: bytes) -> int | None:
    """A path below a top folder; None for what is not to be archived."""
    try:
        return open_beneath(folder, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        # Another mount, which is archived itself or not ours; or CRIU or a program
        # outside has removed it meanwhile.
        if error.errno in {errno.EXDEV, errno.ENOENT}:
            return None
        raise


def _below(folder: int, path: bytes) -> list[bytes]:
    try:
        inside = open_beneath(folder, path, _FOLDER)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return []
        raise
    with closing(inside), os.scandir(inside) as entries:
        some = itertools.islice(entries, MAX_ENTRIES + 1)
        names = sorted((os.fsencode(one.name) for one in some), reverse=True)
    if len(names) > MAX_ENTRIES:
        raise _too_many()
    return [name if path == b"." else path + b"/" + name for name in names]


def _prefix(name: str) -> str:
    """The overlay's own prefix of an extended attribute's name; empty for others."""
    return next((prefix for prefix in _OVERLAY if name.startswith(prefix)), "")


def _attributes(info: tarfile.TarInfo, entry: int, *, upper: bool) -> bool:
    whiteout = False
    headers = dict(info.pax_headers)
    path = f"/proc/self/fd/{entry}"
    for name in os.listxattr(path):
        value = os.getxattr(path, name)
        prefix = _prefix(name)
        if not (prefix and upper):
            headers |= attribute_header(name, value)
            continue
        what = name.removeprefix(prefix)
        # What a renamed folder holds has nothing to do with what had its name before.
        if (what == "opaque" and value == b"y") or what == "redirect":
            headers[OPAQUE] = "1"
        whiteout = whiteout or what == "whiteout"
    info.pax_headers = headers
    return whiteout


def _too_many() -> RolledBack:
    return _failed(f"there are more than {MAX_ENTRIES:,} files to archive")


def _failed(why: str) -> RolledBack:
    return RolledBack(Reason.CAPTURE_FAILED, why=why)
