"""Reads mount tables (/proc/<pid>/mountinfo), and finds a session's private mounts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.descriptors import closing
from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")

#: A container's runtime makes these again; what lies on them is not the session's.
_RUNTIME: Final = (Path("/proc"), Path("/sys"))


class Mount(NamedTuple):
    """One line of a mount table, as its own mount namespace sees it."""

    device: str  #: major:minor
    root: str  #: which folder of the file system is mounted
    target: Path
    kind: str  #: type of the file system
    options: frozenset[str]
    super_options: frozenset[str]
    id: int = 0
    parent: int = 0  #: which mount it is mounted on

    def option(self, name: str) -> str | None:
        for one in self.super_options:
            key, equals, value = one.partition("=")
            if equals and key == name:
                return value
        return None


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount of these that a path lies on; of several there, the last one."""
    found = None
    for mount in mounts:
        target = str(mount.target)
        on = path == target or path.startswith(target.rstrip("/") + "/")
        if on and (found is None or len(mount.target.parts) >= len(found.target.parts)):
            found = mount
    return found


def parse_mounts(table: str) -> list[Mount]:
    """A mountinfo table; malformed lines are left out."""
    mounts = []
    for line in table.split("\n"):
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        numbers = [field for field in fields[:2] if field.isdecimal()]
        if not separator or len(fields) < 6 or len(rest) < 3 or len(numbers) < 2:
            continue
        mounts.append(
            Mount(
                device=fields[2],
                root=_plain(fields[3]),
                target=Path(_plain(fields[4])),
                kind=rest[0],
                options=frozenset(fields[5].split(",")),
                super_options=frozenset(map(_plain, rest[2].split(","))),
                id=int(fields[0]),
                parent=int(fields[1]),
            )
        )
    return mounts


def read_mounts(pid: int | str) -> list[Mount]:
    """The mounts that a process sees; none when it is gone."""
    return parse_mounts(procfs.text(pid, "mountinfo"))


def private_tmpfs(session: Iterable[Mount], host: Iterable[Mount]) -> list[Mount]:
    """The session's writable tmpfs mounts that are not shared outside; pure."""
    session = list(session)
    outside = {mount.device for mount in host}
    return [
        mount
        for mount in visible(session)
        if mount.kind == "tmpfs"
        and "ro" not in mount.options
        and mount.target != Path("/dev")
        and not any(mount.target.is_relative_to(folder) for folder in _RUNTIME)
        and mount.device not in outside
        and mount.root == "/"
    ]


def root_overlay(session: Iterable[Mount]) -> Mount | None:
    roots = [m for m in visible(list(session)) if m.target == Path("/")]
    return roots[0] if roots and roots[0].kind == "overlay" else None


def has_proc(pid: int) -> bool:
    """Whether the kernel's files of processes are at ``/proc`` for that process."""
    return any(
        str(one.target) == "/proc" and one.kind == "proc" for one in read_mounts(pid)
    )


def visible(mounts: list[Mount]) -> list[Mount]:
    """Mounts that no other mount covers; pure.

    The order of the table says nothing (it is that of the numbers, which are reused):
    only the parents do. A mount is covered by one on its own root, or by one that its
    parent, or the parent of that, carries further up the path.
    """
    by_id = {mount.id: mount for mount in mounts}
    carried: dict[int, list[Mount]] = {}
    for mount in mounts:
        carried.setdefault(mount.parent, []).append(mount)

    def hidden_above(mount: Mount, depth: int = 0) -> bool:
        siblings = carried[mount.parent]
        if any(
            other.target != mount.target and mount.target.is_relative_to(other.target)
            for other in siblings
        ):
            return True
        parent = by_id.get(mount.parent)
        if parent is None or parent is mount or depth > len(mounts):
            return False
        return hidden_above(parent, depth + 1)

    return [
        mount
        for mount in mounts
        if not hidden_above(mount)
        and not any(on.target == mount.target for on in carried.get(mount.id, ()))
    ]


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


# The same numbers on every architecture (<asm-generic/unistd.h>, <linux/mount.h>).
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _SET_STRING, _CREATE = 1, 1, 6


def new_file_system(kind: str, flags: int = 0, **options: str) -> int:
    """A descriptor of the top of a new one, which is mounted nowhere (fsopen(2)).

    Raises:
        OSError: this kernel or container does not allow it.
    """
    with closing(
        checked(libc.syscall(_FSOPEN, kind.encode(), _CLOEXEC), "fsopen")
    ) as context:
        for name, value in options.items():
            words = (name.encode(), value.encode(), 0)
            set_ = libc.syscall(_FSCONFIG, context, _SET_STRING, *words)
            checked(set_, "fsconfig")
        made = libc.syscall(_FSCONFIG, context, _CREATE, None, None, 0)
        checked(made, "fsconfig")
        return checked(libc.syscall(_FSMOUNT, context, _CLOEXEC, flags), "fsmount")
