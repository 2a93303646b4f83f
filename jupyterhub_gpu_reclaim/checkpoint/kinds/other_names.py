"""Deleted files that have another name: refused, but for shared memory."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.saved_images import FILES
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import found_at, root_of
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Program, Session
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.mounts import Mount

_SHARED_MEMORY: Final = b"/dev/shm"
_DELETED: Final = b" (deleted)"
#: The NFS client keeps a deleted file by such a name until it is closed.
_SILLY: Final = re.compile(rb"/\.nfs[0-9a-f]{24}$")


class Deleted(NamedTuple):
    """An open or mapped file that has lost a name, and has another one."""

    word: str  #: CRIU's, for a file that is taken care of outside of it
    path: bytes  #: the name that it has lost
    name: bytes  #: another one in shared memory; empty: it is to be refused


class OtherNames(Kind):
    """Deleted files that have another name.

    CRIU (4.2: ``create_link_remap``) would give such a file a name of its own, as root,
    in the folder where the lost one was, found by its path: a link in that folder's
    place would make root create a name anywhere in that file system. So CRIU is not
    given ``--link-remap``, and what would need it is refused by name: a library that a
    package manager has replaced and keeps in a cache of hard links, or what a program
    of an NFS folder has deleted and holds open.

    A semaphore of sem_open(3) is such a file from its very beginning: the C library
    makes it under a name for the moment, maps it, links it to its own name and removes
    the first. So has each lock of ``multiprocessing`` where its workers are not forked,
    and joblib's. Its other name is in the same folder, and goes into CRIU's image.
    """

    asked_again = True

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}  #: by CRIU's word for what is taken care of

    def preflight(self, seen: Session) -> Iterator[Finding]:
        search = _Search(seen.init_pid)
        for one in seen.programs:
            found = list(search.find(one))
            self._names |= {each.word: each.name for each in found if each.name}
            for path in sorted({each.path for each in found if not each.name}):
                name = os.fsdecode(path)
                yield one.holds(f"the deleted file {name}, which has another name")

    def before_dump(self, dump: Dump) -> None:
        for word in self._names:
            dump.arguments += ["--external", word]

    def save(self, dump: Dump) -> None:
        files = dump.images.entries(FILES, images.FILES_MAGIC, "file_entry")
        for entry in files if self._names else ():
            word = entry.reg.name.decode("latin-1")
            if entry.reg.ext and word in self._names:
                entry.reg.name = self._names[word]
                entry.reg.ClearField("ext")


class _Search:
    """Looks at each such file once: it may be mapped tens of thousands of times."""

    def __init__(self, init_pid: int) -> None:
        self._init_pid = init_pid
        self._seen: dict[tuple[str, int, int], Deleted | None] = {}

    def find(self, one: Program) -> Iterator[Deleted]:
        for link, text in one.links.items():
            target = os.fsencode(text)
            if not target.endswith(_DELETED) and not _SILLY.search(target):
                continue
            status = one.target(link)
            if status is None or not status.st_nlink or stat.S_ISDIR(status.st_mode):
                continue
            key = (text, status.st_dev, status.st_ino)
            if key not in self._seen:
                with contextlib.suppress(OSError):
                    self._seen[key] = self._look(one.pid, link, target)
            if found := self._seen.get(key):
                yield found

    @functools.cached_property
    def _mounts(self) -> dict[int, Mount]:
        return {mount.id: mount for mount in read_mounts(self._init_pid)}

    def _look(self, pid: int, link: str, target: bytes) -> Deleted | None:
        with closing(os.open(procfs.PROC / str(pid) / link, os.O_PATH)) as found:
            status = os.fstat(found)
            number = int(procfs.fdinfo(os.getpid(), found)["mnt_id"])
            if number not in self._mounts:
                return None  # memory that the kernel calls a file
        with root_of(self._init_pid) as root:
            if target.endswith(_DELETED):
                is_one = not _stands_at(root, target, status)  # its very name may be so
            else:
                is_one = self._mounts[number].kind.startswith("nfs")
            if not is_one:
                return None
            word = f"file[{number:x}:{status.st_ino:x}]"
            path = target.removesuffix(_DELETED)
            return Deleted(word, path, _name_of(root, path, status))


def _stands_at(root: int, path: bytes, status: os.stat_result) -> bool:
    with contextlib.suppress(OSError), found_at(root, path, os.O_PATH) as there:
        return os.path.samestat(os.fstat(there), status)
    return False


def _name_of(root: int, path: bytes, status: os.stat_result) -> bytes:
    """Another name in shared memory of what had that one there; empty: it has none."""
    if path.rpartition(b"/")[0] != _SHARED_MEMORY:
        return b""
    with found_at(root, _SHARED_MEMORY, os.O_RDONLY | os.O_DIRECTORY) as folder:
        if os.fstat(folder).st_dev != status.st_dev:
            return b""
        # One after the other: a user may have millions of names there.
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.inode() == status.st_ino:
                    return _SHARED_MEMORY + b"/" + os.fsencode(entry.name)
    return b""
