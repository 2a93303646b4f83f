"""Small readers of /proc/<pid> for processes that may end at any moment.

A process that has gone reads as nothing, never as an error (but for :func:`read` and
:func:`words`). All processes of the machine are read every few seconds, and ``pathlib``
would take four times as long.

``environ`` and ``cmdline`` are memory of the program itself: reading them takes the
lock of its address space, which it can hold as long as it likes, and they are as long
as it likes. So :func:`words` reads each in a thread of its own, with a limit of time
and of size, and never a second time while a first reader hangs in it.
"""

# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import struct
import threading
import time
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from jupyterhub_gpu_reclaim.linux.libc import AT_FDCWD, checked, libc

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
#: Fields of /proc/<pid>/stat, counted from the state.
PARENT, _TTY, START_TIME = 1, 4, 19
_READ_SIZE: Final = 1 << 16
_DONT_SYNC: Final = 0x4000
_BASIC: Final = 0x7FF
#: ``struct statx`` (linux/stat.h): links, uid, gid, mode, inode, size, blocks, when it
#: was last modified, in seconds and nanoseconds, and the numbers of two devices.
_STATX: Final = struct.Struct("=16xIIIH2xQQQ56xqI4xIIII112x")


class Descriptor(NamedTuple):
    """One open descriptor of a process."""

    fd: int
    target: str  #: what its link in /proc/<pid>/fd reads


class Mapping(NamedTuple):
    """One line of /proc/<pid>/maps that is backed by a file."""

    start: int
    end: int
    mode: str  #: e.g. ``r-xp``; the last letter is p(rivate) or s(hared)
    device: str
    inode: int
    path: str
    offset: int  #: in what is mapped; bytes

    @property
    def link(self) -> str:
        """The name of its link below the folder of its process."""
        return f"map_files/{self.start:x}-{self.end:x}"


def pids() -> list[int]:
    """Every process of the machine that this /proc shows."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def read(pid: int | str, name: str) -> bytes:
    """A file of /proc/<pid>; a pid may be ``self``.

    Raises:
        OSError: the process has ended, or the file may not be read.
    """
    descriptor = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The kernel gives a page at a time, of what may be 50 MB.
        return b"".join(iter(lambda: os.read(descriptor, _READ_SIZE), b""))
    finally:
        os.close(descriptor)


def text(pid: int | str, name: str, errors: str = "surrogateescape") -> str:
    """A file of /proc/<pid>, decoded like a path; empty when it is not there."""
    try:
        return read(pid, name).decode("utf-8", errors)
    except OSError:
        return ""


def memory(pid: int, address: int, length: int) -> bytes:
    """What a process has in memory there, as far as it has any.

    Raises:
        OSError: it has ended, has nothing there, or may not be read.
    """
    descriptor = os.open(f"{PROC}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, length, address)
    except OverflowError:  # the kernel's half; programs name any address as theirs
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT)) from None
    finally:
        os.close(descriptor)


def link(pid: int, name: str) -> str:
    """Target of a link of /proc/<pid>; empty if it is not there."""
    try:
        return os.readlink(f"{PROC}/{pid}/{name}")
    except OSError:
        return ""


def cached_status(path: str) -> os.stat_result:
    """A file's status as the kernel knows it; it may be old. Of times only one is told.

    stat(2) of a file of a FUSE or network file system waits for its server: a program
    of the user's that may never answer, or that is stopped.

    Raises:
        OSError: as stat(2) does.
    """
    buffer = ctypes.create_string_buffer(_STATX.size)
    where = os.fsencode(path)
    checked(libc.statx(AT_FDCWD, where, _DONT_SYNC, _BASIC, buffer), "statx")
    links, uid, gid, mode, inode, size, blocks, *rest = _STATX.unpack(buffer.raw)
    modified, modified_ns, *devices = rest
    special, device = os.makedev(*devices[:2]), os.makedev(*devices[2:])
    numbers = (mode, inode, device, links, uid, gid, size, 0, modified, 0)
    more = {
        "st_mtime_ns": modified * 10**9 + modified_ns,
        "st_blocks": blocks,
        "st_rdev": special,
    }
    return os.stat_result(numbers, more)


def target_status(pid: int, name: str) -> os.stat_result | None:
    """Status of the target of a link in /proc/<pid>, even if it has lost its name.

    No file server is asked.
    """
    try:
        return cached_status(f"{PROC}/{pid}/{name}")
    except OSError:
        return None


def status(pid: int | str, thread: int | None = None) -> dict[str, str]:
    """The fields of /proc/<pid>/status, or of a thread's; empty when it is gone."""
    name = "status" if thread is None else f"task/{thread}/status"
    return fields(text(pid, name, "replace"))


def fields(content: str) -> dict[str, str]:
    """Lines of a name, a colon and a value."""
    pairs = (line.partition(":") for line in content.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def inner_id(status: dict[str, str]) -> int:
    """A thread's id in its own pid namespace, by its status; 0 when it is gone."""
    return int(status.get("NSpid", "0").split()[-1])


def name(pid: int) -> str:
    """The process's short name; ``?`` when it is gone."""
    return text(pid, "comm").strip() or "?"


def stat(pid: int, thread: int | None = None) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty when it is gone."""
    # The name comes before them, and may hold anything.
    name = "stat" if thread is None else f"task/{thread}/stat"
    return text(pid, name).rpartition(")")[2].split()


def private_bytes(pid: int) -> int:
    """Its resident memory, but what it shares with others; 0 when it is gone."""
    sizes = text(pid, "statm").split()
    return (int(sizes[1]) - int(sizes[2])) * mmap.PAGESIZE if sizes else 0


def terminal(pid: int) -> int:
    """Device number of its controlling terminal (proc(5), tty_nr); 0: it has none."""
    fields = stat(pid)
    return int(fields[_TTY]) if len(fields) > _TTY else 0


def descriptors(pid: int) -> Iterator[Descriptor]:
    # One by one: there may be a million, of which a caller looks at a part.
    with contextlib.suppress(OSError), os.scandir(f"{PROC}/{pid}/fd") as entries:
        for entry in entries:
            target = link(pid, f"fd/{entry.name}")
            if target:
                yield Descriptor(int(entry.name), target)


def count_descriptors(pid: int, most: int) -> int:
    """How many descriptors a process has open, counted up to so many."""
    with contextlib.suppress(OSError), os.scandir(f"{PROC}/{pid}/fd") as entries:
        return sum(1 for _ in islice(entries, most))
    return 0


def fdinfo(pid: int, fd: int) -> dict[str, str]:
    """The fields of /proc/<pid>/fdinfo/<fd>; empty when it is closed."""
    return fields(text(pid, f"fdinfo/{fd}"))


def mappings(pid: int) -> Iterator[Mapping]:
    """The mappings of a process that are backed by a file or by shared memory."""
    for where, mode, offset, device, inode, path in _areas(pid):
        # By its path, not by its inode: the first System V segment has number 0.
        if path[:1] not in _NO_FILE:
            name = path.replace("\\012", "\n")
            start, end = _ends(where)
            yield Mapping(start, end, mode, device, int(inode), name, int(offset, 16))


def data_areas(pid: int) -> Iterator[tuple[int, int]]:
    """Begin and end of what it may write but not execute, and no file backs."""
    for where, mode, _, _, _, path in _areas(pid):
        if mode == "rw-p" and path[:1] in _NO_FILE:
            yield _ends(where)


#: How the name of an area begins that no file backs.
_NO_FILE: Final = {"", "["}


def _areas(pid: int) -> Iterator[list[str]]:
    """The fields of each line of /proc/<pid>/maps; its name is empty if it has none."""
    for line in filter(None, text(pid, "maps").split("\n")):
        yield [*line.split(maxsplit=5), ""][:6]


def _ends(where: str) -> tuple[int, int]:
    begin, _, end = where.partition("-")
    return int(begin, 16), int(end, 16)


def links(pid: int) -> Iterator[tuple[str, str]]:
    """All that it has open, mapped or as a folder: the name in /proc, and the path."""
    for name in ("cwd", "exe", "root"):
        yield name, link(pid, name)
    for fd, target in descriptors(pid):
        yield f"fd/{fd}", target
    for one in mappings(pid):
        yield one.link, one.path


#: Seconds that an honest process never needs.
SECONDS = 2.0
#: Limit of Linux for arguments and environment together (fs/exec.c, 3/4 of 8 MiB).
MAX_BYTES = 6 << 20

MemoryFile = Literal["environ", "cmdline"]


#: Readings under way, by file and start time of the process; since when, and what
#: comes of it: the thread that does it may never come back.
_reads: dict[tuple[Path, bytes], tuple[float, Future[bytes]]] = {}
_lock = threading.Lock()


def words(pid: int, file: MemoryFile, *, seconds: float = SECONDS) -> list[bytes]:
    """The words of ``/proc/<pid>/environ`` or ``cmdline``; blocks for so long at most.

    Raises:
        OSError: the process has ended or may not be read, or there is more than the
            limit.
        TimeoutError: (an OSError) it takes too long, or has hung for longer already.
    """
    path = PROC / str(pid) / file
    start = _start_text(pid)
    begun, reading = _begin(path, start)
    try:
        data = reading.result(max(0.0, begun + seconds - time.monotonic()))
    except TimeoutError:
        raise TimeoutError(f"{path} does not come") from None
    if len(data) > MAX_BYTES:
        raise OSError(f"{path} has more than {MAX_BYTES} bytes")
    if _start_text(pid) != start:
        raise ProcessLookupError(f"process {pid} has ended")
    return data.removesuffix(b"\0").split(b"\0")


def _begin(path: Path, start: bytes) -> tuple[float, Future[bytes]]:
    key = (path, start)
    with _lock:
        if key not in _reads:
            _reads[key] = time.monotonic(), Future()
            # A daemon: our own end does not wait for it.
            threading.Thread(target=_run, args=key, daemon=True).start()
        return _reads[key]


def _run(path: Path, start: bytes) -> None:
    reading = _reads[path, start][1]
    try:
        with path.open("rb") as file:
            reading.set_result(file.read(MAX_BYTES + 1))
    except OSError as error:
        reading.set_exception(error)
    finally:
        with _lock:
            del _reads[path, start]


def _start_text(pid: int) -> bytes:
    """Start time of a process as in ``stat``: with the pid it names one process."""
    return read(pid, "stat").rpartition(b")")[2].split()[START_TIME]
