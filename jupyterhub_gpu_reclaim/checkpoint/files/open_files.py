"""Records the files that a session has open, and checks whether they still fit.

:func:`fingerprint` is taken at the end of a capture. :func:`look` looks at the paths
before anything is touched, and :func:`refuse_changed` at the very descriptors that the
session is given (``kinds.named_files``): only the latter's word counts.

The programs remember the files of then: positions, sizes, pages, and would destroy
other contents by writing into them. So it makes no difference what has changed a file:
another program, or the session itself, which has come back from the same checkpoint
before, or has gone on behind a save point.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from blake3 import blake3

from jupyterhub_gpu_reclaim.common.errors import Refused, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Finding, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import moment
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import found_at, open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from jupyterhub_gpu_reclaim.linux.mounts import Mount

#: Files above this are not read; a change of their time then counts as a change.
MAX_HASHED_BYTES: Final = 1 << 30

#: So much is read of all files that are written, while the session stands still: a
#: tenth of a second from the system's cache.
MAX_WRITTEN_BYTES: Final = 1 << 28

HASH: Final = "blake3:"
#: No file was written then.
_NO_TIME: Final = -1
#: So many names are told of files that have changed.
_MAX_LISTED: Final = 5
_CACHE_ENTRIES: Final = 4096
#: A program or library of 64 bits, little-endian; others are hashed.
_ELF_64: Final = b"\x7fELF\x02\x01"
#: A segment of it (elf(5)): its kind, where it begins, and its length.
_SEGMENT: Final = struct.Struct("<I4xQ16xQ16x")
_NOTE_SEGMENT: Final = 4
#: The head of the note that has its build ID; the ID's length is in the middle.
_NOTE: Final = re.compile(rb"\x04\0\0\0(.)\0\0\0\x03\0\0\0GNU\0", re.DOTALL)
_HEADERS_BYTES: Final = 1 << 16

_cache: OrderedDict[tuple[int, ...], str] = OrderedDict()


def contents_digest(descriptor: int) -> str:
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
        known = _build_id(descriptor) or _hash(descriptor)
        _cache[key] = known
        while len(_cache) > _CACHE_ENTRIES:
            _cache.popitem(last=False)
    return known


def _hash(descriptor: int, length: int | None = None) -> str:
    left = os.fstat(descriptor).st_size if length is None else length
    if left > MAX_HASHED_BYTES:
        return ""
    hasher = blake3(max_threads=blake3.AUTO)
    at = 0
    while block := os.pread(descriptor, min(1 << 20, left - at), at):
        hasher.update(block)
        at += len(block)
    return f"{HASH}{hasher.hexdigest()}"


def _build_id(descriptor: int) -> str:
    head = os.pread(descriptor, _HEADERS_BYTES, 0)
    if len(head) < 64 or not head.startswith(_ELF_64):
        return ""
    (start,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    segments = head[start : start + count * _SEGMENT.size]
    if size != _SEGMENT.size or len(segments) % size:
        return ""
    for kind, offset, length in _SEGMENT.iter_unpack(segments):
        if kind == _NOTE_SEGMENT and offset < 1 << 62:
            notes = os.pread(descriptor, min(length, _HEADERS_BYTES), offset)
            if found := _NOTE.search(notes):
                end = found.end() + int.from_bytes(found[1], "little")
                return f"build-id:{notes[found.end() : end].hex()}"
    return ""


#: File systems whose files are views into the kernel, made again at a restore.
_KERNEL_FILES: Final = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "debugfs", "tracefs"}
)
_KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFIFO})
_SQLITE: Final = b"SQLite format 3\0"
#: Ends of the names of what belongs to an SQLite database, open or not.
JOURNALS: Final = (b"-journal", b"-wal")


class FileFingerprint(Value, frozen=True, kw_only=True):
    """One file, folder or fifo that a session had open, when it was saved."""

    path: bytes  #: as the session names it; need not be UTF-8, so base64 in JSON
    device: int
    inode: int
    size: int
    mtime_ns: int
    mode: int
    written: bool = False  #: open for writing without O_APPEND
    appended: bool = False  #: open with O_APPEND
    position: int = 0  #: the furthest of its descriptors
    mapped: bool = False  #: privately, or to be read: code, or data
    executed: bool = False  #: mapped as code
    shared: bool = False  #: mapped so that writes reach the file
    digest: str = ""  #: of the contents, where mapped or written
    database: bool = False  #: SQLite, and no transaction was under way
    uid: int = 0  #: its owner
    gid: int = 0
    kept: str = ""  #: the copy of its contents in the checkpoint; empty: none

    @property
    def is_written(self) -> bool:
        """Whether it is a file into which the session's programs could write."""
        writes = self.written or self.appended or self.shared
        return writes and stat.S_ISREG(self.mode)


class _FileUse:
    """How the descriptors and mappings of a tree use one path, added up.

    All but the lock are fields of a fingerprint.
    """

    def __init__(self) -> None:
        self.written = self.appended = self.mapped = self.shared = False
        self.executed = self.locked = False
        self.position = 0

    @property
    def is_only_mapped(self) -> bool:
        return self.mapped and not (self.written or self.appended or self.shared)

    def add_descriptor(self, info: dict[str, str]) -> None:
        flags = int(info.get("flags", "0"), 8)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self.appended |= bool(flags & os.O_APPEND)
            self.written |= not flags & os.O_APPEND
        self.position = max(self.position, int(info.get("pos", "0")))
        self.locked |= "lock" in info

    def add_mapping(self, mode: str) -> None:
        shared = mode.endswith("s") and "w" in mode
        self.shared |= shared
        self.mapped |= not shared
        self.executed |= "x" in mode


def fingerprint(
    init_pid: int,
    pids: Iterable[int],
    archived: Collection[str] = (),
    *,
    reads: bool = True,
) -> list[FileFingerprint]:
    """Every file that those processes have open, mapped or as their folder, sorted.

    Call it while they are stopped, so that nothing changes any more. ``archived`` are
    the devices of file systems whose contents are saved, too. What is written is read
    for its digest, unless (``reads``) the caller does so later.

    Raises:
        Refused: the session is gone (``no_tree``).
    """
    mounts = read_mounts(init_pid)
    skip = {mount.device for mount in mounts if mount.kind in _KERNEL_FILES}
    skip |= set(archived)
    with closing(_root_of(f"/proc/{init_pid}/root")) as root:
        uses = _uses(pids).items()
        unread = served(mounts)
        found = (_opened(root, path, use, skip, unread) for path, use in uses)
        opened = sorted((one for one in found if one), key=lambda one: one.path)
        digests = _written_digests(root, opened, unread) if reads else {}
    return [
        msgspec.structs.replace(one, digest=digests.get(one.path, ""))
        if one.is_written
        else one
        for one in opened
    ]


def _root_of(path: str | Path) -> int:
    try:
        return open_root(path)
    except OSError as error:
        raise Refused(Reason.NO_TREE, detail=str(error)) from None


def served(mounts: Iterable[Mount]) -> frozenset[int]:
    """Devices that are not read while the session stands still: of FUSE.

    What serves them may be one of its programs, or slow.
    """
    fuse = [mount.device for mount in mounts if mount.kind.startswith("fuse")]
    return frozenset(os.makedev(*map(int, device.split(":"))) for device in fuse)


class Changed(NamedTuple):
    file: FileFingerprint
    at: float | None  #: when that was; None: it is gone


def look(
    opened: Iterable[FileFingerprint], root: Path
) -> tuple[list[Changed], list[Finding]]:
    """The files that have changed below a root, and what else is not as it was.

    Raises:
        Refused: there is no such root (``no_tree``).
    """
    changed: list[Changed] = []
    found: list[Finding] = []
    with closing(_root_of(root)) as folder:
        for one in opened:
            reason = _judge_path(one, folder)
            if reason is Reason.FILE_MISSING and one.is_written:
                changed.append(Changed(one, None))
            elif reason is Reason.FILE_CHANGED:
                changed.append(Changed(one, _changed_at(one, folder)))
            elif reason is not None:
                found.append(finding(reason, path=_name(one), what=_kind(one)))
    return changed, found


def _changed_at(one: FileFingerprint, root: int) -> float | None:
    with suppress(OSError), found_at(root, one.path) as name:
        return os.fstat(name).st_mtime
    return None


def newer(changed: Sequence[Changed], lost: Iterable[FileFingerprint] = ()) -> str:
    """The names of changed files, and when that was, for a person.

    If something was not kept (``lost``), it is named alone.
    """
    when = {
        one.file.path: "gone" if one.at is None else f"changed {moment(one.at)}"
        for one in changed
    }
    names = [
        f"{_name(one)} ({when.get(one.path, 'belongs to it')}, not kept)"
        for one in lost
    ]
    return _listed(
        names or [f"{_name(one.file)} ({when[one.file.path]})" for one in changed]
    )


def not_kept(opened: Iterable[FileFingerprint]) -> str:
    """The names of what its programs could write and was not kept; empty: none."""
    return _listed([_name(one) for one in opened if one.is_written and not one.kept])


# Behind a save point a file's time says nothing: what the session writes through its
# mappings while it goes on need not change it.
def by_contents(opened: Iterable[FileFingerprint]) -> list[FileFingerprint]:
    """The same files, of which those that are written are judged by contents alone."""
    return [
        msgspec.structs.replace(one, mtime_ns=_NO_TIME)
        if one.is_written and (one.digest or one.shared)
        else one
        for one in opened
    ]


def refuse_changed(
    opened: Iterable[FileFingerprint], held: Mapping[bytes, Sequence[int]], root: int
) -> None:
    """Judge the files that were opened, each by its descriptor.

    Raises:
        RestoreFailed: one has changed so that its session must not have it back.
    """
    for one in opened:
        for descriptor in held.get(one.path, ()):
            reason = _judge(one, descriptor, root)
            if reason is not None:
                raise RestoreFailed(reason, path=_name(one), what=_kind(one))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    more = len(names) - _MAX_LISTED
    return shown if more <= 0 else f"{shown} and {more} more"


def _kind(one: FileFingerprint) -> str:
    return "folder" if stat.S_ISDIR(one.mode) else "file"


def _name(one: FileFingerprint) -> str:
    return one.path.decode("utf-8", "backslashreplace")


def _uses(pids: Iterable[int]) -> dict[bytes, _FileUse]:
    uses: dict[bytes, _FileUse] = {}
    for pid in pids:
        for fd, target in procfs.descriptors(pid):
            if target.startswith("/"):
                use = uses.setdefault(os.fsencode(target), _FileUse())
                use.add_descriptor(procfs.fdinfo(pid, fd))
        folder = procfs.link(pid, "cwd")
        if folder.startswith("/"):
            uses.setdefault(os.fsencode(folder), _FileUse())
        for mapping in procfs.mappings(pid):
            if mapping.path.startswith("/"):
                use = uses.setdefault(os.fsencode(mapping.path), _FileUse())
                use.add_mapping(mapping.mode)
    return uses


def _opened(
    root: int,
    path: bytes,
    use: _FileUse,
    skip: Collection[str],
    unread: Collection[int],
) -> FileFingerprint | None:
    """The fingerprint of one path; None for what is not a file of this module.

    Nothing is read on the devices ``unread``: while a thread of ours has such a file
    open and waits for it, no program can be started (each closes it first, and FUSE
    asks its server at that).
    """
    try:
        name = open_in_root(root, path, os.O_PATH)
    except OSError:
        return None  # deleted, "(deleted)" or "/memfd:…"
    with closing(name):
        status = os.fstat(name)
        device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
        if stat.S_IFMT(status.st_mode) not in _KINDS or device in skip:
            return None
        is_file = stat.S_ISREG(status.st_mode) and status.st_dev not in unread
        return of_file(
            path,
            name,
            **{key: value for key, value in vars(use).items() if key != "locked"},
            digest=_digest(name) if use.is_only_mapped and is_file else "",
            database=use.written
            and is_file
            and not use.locked
            and _is_quiet_database(root, path, name),
        )


def of_file(path: bytes, descriptor: int, **use: Any) -> FileFingerprint:
    status = os.fstat(descriptor)
    return FileFingerprint(
        path=path,
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        **use,
    )


def _written_digests(
    root: int, opened: Iterable[FileFingerprint], skip: Collection[int]
) -> dict[bytes, str]:
    """Digests of the smallest files that are written, by path; see the table.

    Hashed each time: what is written through a mapping need not change a file's time.
    """
    digests: dict[bytes, str] = {}
    left = MAX_WRITTEN_BYTES
    for one in sorted(opened, key=lambda one: one.size):
        if one.device in skip or not one.is_written:
            continue
        left -= one.size
        if left < 0:
            break
        with suppress(OSError), found_at(root, one.path, os.O_PATH) as name:
            digests[one.path] = _digest(name, _hash)
    return digests


def _judge_path(one: FileFingerprint, root: int) -> Reason | None:
    try:
        with found_at(root, one.path) as name:
            return _judge(one, name, root)
    except FileNotFoundError:
        return None if stat.S_ISFIFO(one.mode) else Reason.FILE_MISSING
    except OSError:
        return Reason.FILE_MISSING


# CRIU would refuse a file whose size, build ID or mode differs. That is right for a
# library and wrong for a log that grew. So a file is judged by how it was open:
#
# changed file            harmless                     refused
# put back                same contents
# gone                                                 file_missing, file_changed
# mapped to be executed   same contents (build ID)     library_changed
# mapped otherwise        same contents                file_changed
# only appended to        the same, and more           file_changed
# written                 SQLite between transactions  file_changed
# only read               not shorter                  file_shrank
# folder, FIFO            always, if it is there
def _judge(one: FileFingerprint, found: int, root: int) -> Reason | None:
    status = os.fstat(found)
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(one.mode):
        return Reason.FILE_MISSING
    same = (status.st_size, status.st_mtime_ns) == (one.size, one.mtime_ns)
    # What is written through a mapping need not change a file's time.
    if (same and not (one.shared and one.digest)) or not stat.S_ISREG(status.st_mode):
        return None
    return None if has_contents(one, found) else _judge_changed(one, found, root)


def _judge_changed(one: FileFingerprint, found: int, root: int) -> Reason | None:
    if one.executed:
        return Reason.LIBRARY_CHANGED
    if one.mapped or one.shared:
        return Reason.FILE_CHANGED
    if one.written:
        quiet = one.database and _is_quiet_database(root, one.path, found)
        return None if quiet else Reason.FILE_CHANGED
    if one.appended:
        return None if _has_grown(one, found) else Reason.FILE_CHANGED
    return Reason.FILE_SHRANK if os.fstat(found).st_size < one.size else None


def _has_grown(one: FileFingerprint, found: int) -> bool:
    """Whether it begins with what it was.

    Where that is not known, its length must do: who appends writes over nothing.
    """
    if os.fstat(found).st_size < one.size:
        return False
    return not one.digest or _digest(found, lambda f: _hash(f, one.size)) == one.digest


def has_contents(one: FileFingerprint, found: int) -> bool:
    """Whether what a descriptor leads to has the contents that it had."""
    status = os.fstat(found)
    same = one.digest and status.st_size == one.size and stat.S_ISREG(status.st_mode)
    if not same:
        return False
    whole = one.digest.startswith(HASH)
    return _digest(found, _hash if whole else contents_digest) == one.digest


def _reading(found: int) -> AbstractContextManager[int]:
    flags = os.O_RDONLY | os.O_NONBLOCK
    return closing(os.open(f"/proc/thread-self/fd/{found}", flags))


def _digest(found: int, digest: Callable[[int], str] = contents_digest) -> str:
    try:
        with _reading(found) as descriptor:
            return digest(descriptor)
    except OSError:
        return ""  # unreadable counts as not known, so that any change refuses


def _is_quiet_database(root: int, path: bytes, found: int) -> bool:
    """Whether it is an SQLite database without a transaction under way.

    Between transactions SQLite keeps nothing of the file that it does not check again:
    its pages are valid only as long as the change counter is (sqlite.org/fileformat2).
    One that reads or writes has a lock on the file, which is looked at by the caller:
    its journal may be in memory, or is not begun yet.
    """
    try:
        with _reading(found) as descriptor:
            if os.pread(descriptor, len(_SQLITE), 0) != _SQLITE:
                return False
    except OSError:
        return False
    for suffix in JOURNALS:
        with (
            suppress(OSError),
            found_at(root, path + suffix, os.O_PATH) as journal,
        ):
            if os.fstat(journal).st_size:
                return False
    return True
