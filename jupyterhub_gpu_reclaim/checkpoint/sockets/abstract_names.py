"""Abstract names of UNIX sockets that are taken when their session comes back.

Such a name belongs to a network namespace, which sessions on one machine share. Most
are a program's own choice and come back as they were; where another program has one,
that is told before a restore touches anything.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.sockets.ports import MOST_TOLD, holder_of
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns, procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import unix_sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jupyterhub_gpu_reclaim.common.models import Finding

#: CRIU's mark of a socket that is not the tree's.
_EXTERNAL: Final = 1
_MAX_BYTES: Final = 108  # sun_path
_OF_A_NAMESPACE: Final = re.compile(rb"\0cuda-uvmfd-(\d+)-\d+\0*\Z")


class Name(NamedTuple):
    """A name and the kind of its socket: each kind has names of its own."""

    kind: int
    name: bytes


# libcuda makes a name of the number of its pid namespace and its pid there, by which
# its other processes find it. A restored session lives in another pid namespace, and
# the kernel gives the number of the former to a new one at once, maybe another
# session's, whose programs have the same pids. So such a name becomes that of the new
# namespace.
def renew(entries: Iterable[Any], init_pid: int) -> None:
    """Give those names the number of the pid namespace of that init.

    Raises:
        OSError: the init has ended.
    """
    namespace = b"%d" % (procfs.PROC / str(init_pid) / "ns/pid").stat().st_ino
    for entry in entries:
        match = _OF_A_NAMESPACE.match(entry.usk.name) if _is_bound(entry) else None
        if match is None:
            continue
        had: bytes = entry.usk.name
        name = had[: match.start(1)] + namespace + had[match.end(1) :]
        if len(had) == _MAX_BYTES:  # zeros that fill all the room count, too
            name = name.rstrip(b"\0").ljust(_MAX_BYTES, b"\0")
        entry.usk.name = name


def names_of(entries: Iterable[Any]) -> frozenset[Name]:
    """The names that a restore of that image must have for itself."""
    return frozenset(
        Name(entry.usk.type, entry.usk.name) for entry in entries if _is_bound(entry)
    )


def lasting_names_of(entries: Iterable[Any]) -> list[Name]:
    """Names that are the same wherever the session comes back, sorted."""
    return sorted(
        one for one in names_of(entries) if not _OF_A_NAMESPACE.match(one.name)
    )


def check_free(
    init_pid: int, names: Collection[Name], *, uid: int | None = None
) -> list[Finding]:
    """Find some names that are in the way of a restore under that init, sorted."""
    taken = (one for one in sorted(names) if _is_taken(init_pid, one))
    some = list(islice(taken, MOST_TOLD))
    there = unix_sockets(init_pid) if some else []
    found = []
    for one in some:
        shown = os.fsdecode(b"@" + one.name[1:])
        inodes = [s.inode for s in there if s.name == shown and s.kind == one.kind]
        words, holder = shown.rstrip("\0"), holder_of(inodes, uid)
        found.append(finding(Reason.NAME_IN_USE, name=words, holder=holder))
    return found


def _is_bound(entry: Any) -> bool:
    return (
        entry.HasField("usk")
        and entry.usk.name.startswith(b"\0")
        and not entry.usk.uflags & _EXTERNAL
    )


def _is_taken(init_pid: int, one: Name) -> bool:
    try:
        with netns.make_socket(init_pid, socket.AF_UNIX, one.kind) as probe:
            probe.bind(one.name)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
