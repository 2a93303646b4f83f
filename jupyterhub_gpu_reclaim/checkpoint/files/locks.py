"""Keeps the POSIX locks (``fcntl.lockf``) that a process has on an inherited file.

CRIU (4.2: ``do_dump_gen_file``) drops what it has read of locks where an open file has
been saved for another process already: of an inherited file, as Apache's and php-fpm's
workers have one, only the first holder's locks are saved. The others' are added here.
To set a lock again that is there already changes nothing.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

IMAGE: Final = "filelocks.img"
_POSIX: Final = 1  # CRIU's FL_POSIX
_KINDS: Final = {"READ": 0, "WRITE": 1}  # F_RDLCK, F_WRLCK
#: A lock that is held, in ``/proc/locks`` and, behind its word, in ``fdinfo``.
_LOCK: Final = re.compile(
    r"\d+: POSIX +\w+ +(READ|WRITE) +(\d+) +\S+ +(\d+) +(\d+|EOF)$", re.MULTILINE
)


def add(tree: Snapshot, kept: dict[str, bytes]) -> None:
    """Add the POSIX locks of a stopped tree to CRIU's image of locks.

    Args:
        tree: the tree.
        kept: name → contents of images; the one of locks is changed, or made.
    """
    holders = {int(pid) for _, pid, _, _ in _LOCK.findall(procfs.text("", "locks"))}
    held = [
        payload
        for process in tree.processes
        if process.pid in holders
        for payload in _locks_of(process)
    ]
    if held:
        known = images.split(kept[IMAGE], images.LOCKS_MAGIC) if IMAGE in kept else ()
        kept[IMAGE] = images.join(images.LOCKS_MAGIC, dict.fromkeys([*known, *held]))


def _locks_of(process: Process) -> Iterator[bytes]:
    """Entries for each descriptor of a process through which a lock can be set."""
    for one in procfs.descriptors(process.pid):
        if not one.target.startswith("/"):
            continue
        text = procfs.text(process.pid, f"fdinfo/{one.fd}")
        found = _LOCK.findall(text)
        if not found:
            continue
        flags = int(procfs.fdinfo(process.pid, one.fd)["flags"], 8)
        cannot = {os.O_RDONLY: "WRITE", os.O_WRONLY: "READ"}
        for kind, _, start, end in found:
            if flags & os.O_PATH or cannot.get(flags & os.O_ACCMODE) == kind:
                continue
            entry = images.parse("file_lock_entry", b"")
            entry.flag, entry.type = _POSIX, _KINDS[kind]
            entry.pid, entry.fd = process.ns_pid, one.fd
            entry.start = int(start)
            entry.len = 0 if end == "EOF" else int(end) + 1 - entry.start
            yield images.serialize(entry)
