"""The control groups of a process: its pod and container, its limits, v1 and v2.

A process cannot leave the groups into which kubelet and runtime have put it; so
:func:`container_of`, unlike a command line, cannot be forged. Below its container a
user may be allowed to make groups of any name; so the outermost pod counts.

A restored tree is accounted where its new init lives, and the memory limit is lifted
while GPU memory is moved into the host's. Nothing here moves a process between
sessions. An agent in a container may have only its own groups mounted: if our mounts do
not show a group, the host's do (``host``). On a hybrid machine there are v1
hierarchies with controllers and a v2 tree without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import host, procfs
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.mounts import Mount

#: A pod's uid: a UUID, with dashes or (systemd) underscores, or a static pod's hash.
_UID = r"(?P<uid>[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_SLICE: Final = re.compile(
    rf"(?:.+-)?kubepods(?:-(?:burstable|besteffort))?-pod{_UID}\.slice"
)
_FOLDER: Final = re.compile(rf"pod{_UID}")
_QUALITY: Final = frozenset({"burstable", "besteffort"})
_SCOPE: Final = re.compile(
    r"(?:(?:cri-containerd|crio|docker)-)?([0-9a-f]{64})(?:\.scope)?"
)


class ContainerCgroup(NamedTuple):
    """Pod and container whose control group a process is in."""

    pod: str  #: uid, with dashes where it is a UUID
    id: str  #: of the container, 64 hexadecimal digits; empty for the pod's own group


def container_of(pid: int) -> ContainerCgroup | None:
    # None: it is in no pod, or has ended.
    return parse_container(procfs.text(pid, "cgroup"))


def parse_container(table: str) -> ContainerCgroup | None:
    """The container named in a /proc/<pid>/cgroup; pure."""
    # It knows the systemd and the cgroupfs driver, containerd, CRI-O and cri-dockerd:
    #   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/
    #     cri-containerd-<id>.scope          (crio-<id>.scope, docker-<id>.scope)
    #   /kubepods/besteffort/pod<uid>/<id>     (crio-<id>, <id>/container)
    # Anything before ``kubepods`` (kind, k3s, a prefix of the administrator's, the
    # ``..`` of a control group namespace of our own) is skipped. If the hierarchies
    # name different pods, nothing is known.
    found = {one for one in map(_parse_path, _paths(table)) if one is not None}
    if len({one.pod for one in found}) != 1:
        return None
    named = {one for one in found if one.id}
    if len(named) > 1:
        return None
    return next(iter(named or found))


def parse_engine_container(table: str) -> ContainerCgroup | None:
    """The container of an engine without pods, in a /proc/<pid>/cgroup; pure.

    Docker names a group after the container whatever is above it: ``/docker/<id>``
    (cgroupfs), ``/system.slice/docker-<id>.scope`` (systemd), or below an
    administrator's ``--cgroup-parent``. Groups made inside a container are further
    down, so the outermost name counts, also for the pod. None also if the hierarchies
    name different containers.
    """
    found = set()
    for path in _paths(table):
        named = filter(None, map(_SCOPE.fullmatch, path.split("/")))
        if (outermost := next(named, None)) is not None:
            found.add(outermost[1])
    if len(found) != 1:
        return None
    (name,) = found
    return ContainerCgroup(pod=name, id=name)


def owners(pid: int, pod: str) -> frozenset[int]:
    """Ids of the users who made the groups of that name that a process is in.

    The name is the uid of a pod, or an engine's id of a container. Root's are those of
    engine and kubelet. Users may be allowed to make groups below one of their own, of
    any name (systemd gives each who logs in such a one). Empty: it has ended, or no
    mounted hierarchy shows one of that name.
    """
    folders = {
        folder
        for group in groups_of(pid)
        for folder in (group.folder, *group.folder.parents)
        if _is_named(folder, pod)
    }
    try:
        return frozenset(folder.stat().st_uid for folder in folders)
    except OSError:
        return frozenset()


def _paths(table: str) -> list[str]:
    return [line.split(":", 2)[2] for line in table.splitlines() if line.count(":") > 1]


def _parse_path(path: str) -> ContainerCgroup | None:
    parts = path.split("/")
    for at, part in enumerate(parts):
        match = _SLICE.fullmatch(part)
        if match is None and _is_below_kubepods(parts[:at]):
            match = _FOLDER.fullmatch(part)
        if match is not None:
            scope = _SCOPE.fullmatch(parts[at + 1]) if at + 1 < len(parts) else None
            return ContainerCgroup(
                match["uid"].replace("_", "-"), scope[1] if scope is not None else ""
            )
    return None


def _is_below_kubepods(above: list[str]) -> bool:
    if above and above[-1] in _QUALITY:
        above = above[:-1]
    return bool(above) and above[-1] == "kubepods"


#: v1 says "no limit" with a number near 2^63, rounded down to a page.
_NO_LIMIT: Final = 1 << 62


class Group(NamedTuple):
    """One process's place in one hierarchy."""

    controllers: frozenset[str]  #: empty for a v2 tree without controllers, "name=…"
    version: int
    folder: Path


#: The file that tells what is in use, and what of it (memory.stat) are files.
_USAGE_NAMES: Final = {
    1: ("memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
    2: ("memory.current", "inactive_file", "active_file"),
}


class LimitRecord(Value, frozen=True, kw_only=True):
    """Record of a memory limit, to put it back, also after a crash."""

    file: str = ""  #: empty when there was no limit to lift
    bytes: int = 0
    above: LimitRecord | None = None  #: of the pod that the group is in

    def raised(self, more: int) -> LimitRecord:
        above = None if self.above is None else self.above.raised(more)
        return LimitRecord(file=self.file, bytes=self.bytes + more, above=above)


def groups_of(pid: int, *, at_host: bool = False) -> list[Group]:
    """The control groups of a process, as folders that we can reach.

    A hierarchy that is mounted neither here nor at the host, or a group outside of what
    is mounted, is left out; so is one at the host whose root we may not enter. Our own
    mounts, in a container, show its groups as if nothing were above them, and nothing
    can be written there: ``at_host`` leaves them out.

    Raises:
        OSError: the host's mounts cannot be read, and it is in other groups than we.
    """
    roots = {} if at_host else _roots(read_mounts("self"), Path("/"))
    outer: dict[str, list[tuple[Path, str]]] = {}
    groups = []
    table = procfs.text(pid, "cgroup")
    for line in table.splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) - {""}
        name = min(controllers) if controllers else ""
        folder = _reach(roots.get(name, []), path)
        if folder is None:
            try:
                outer = outer or _roots(read_mounts(host.PID), host.root())
                folder = _reach(outer.get(name, []), path)
            except PermissionError:
                # As below ``ip netns exec``, which mounts another /sys: who is where we
                # are need not be moved.
                if at_host or procfs.text(os.getpid(), "cgroup") != table:
                    raise
        if folder is not None:
            version = 1 if controllers else 2
            own = frozenset(_text(folder / "cgroup.controllers").split())
            groups.append(Group(controllers or own, version, folder))
    return groups


def memory_limit(pid: int) -> int | None:
    """The tightest memory limit above a process, in bytes; None for no limit."""
    group = _memory_group(pid)
    if group is None:
        return None
    limits = [_limit(folder, group.version) for folder in _upwards(group)]
    return min((limit for limit in limits if limit is not None), default=None)


def headroom(pid: int, lifted: LimitRecord | None = None) -> dict[str, int]:
    """Bytes left under the memory limits of a process's group and those above it.

    By the folder of each group that has a limit, unless it is lifted. Files that the
    kernel keeps in memory count as free.
    """
    group = _memory_group(pid)
    if group is None:
        return {}
    off = set()
    while lifted is not None:
        off.add(lifted.file)
        lifted = lifted.above
    (used_name, *file_names), found = _USAGE_NAMES[group.version], {}
    for folder in _upwards(group):
        limit = _limit(folder, group.version)
        if limit is None or str(folder / _limit_name(group.version)) in off:
            continue
        used = _number(folder / used_name) or 0
        stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
        kept = sum(int(stat.get(name, 0)) for name in file_names)
        found[str(folder)] = max(0, limit - max(0, used - kept))
    return found


def join(pid: int, other: int) -> None:
    """Move a process into every group that another one is in. Idempotent.

    Raises:
        Refused: a group rejects it (``internal``).
    """
    mine = {(g.version, g.controllers): g.folder for g in groups_of(pid)}
    for group in groups_of(other):
        if mine.get((group.version, group.controllers)) != group.folder:
            take(group, pid)


def take(group: Group, pid: int) -> None:
    """Move a process into a group. Idempotent.

    Raises:
        Refused: the group rejects it (``internal``).
    """
    _write(group.folder / "cgroup.procs", str(pid))


def find_memory_limit(pid: int, pod: str = "") -> LimitRecord:
    """The limit of the group of a process, as :func:`lift_memory_limit` takes it.

    The kubelet limits the pod's own group, too, for all its containers together. Limits
    of groups further up belong to others and are left alone.
    """
    group = _memory_group(pid)
    if group is None:
        return LimitRecord()
    folders = _up_to_pod(group, pod) if pod else [group.folder]
    found: LimitRecord | None = None
    for folder in reversed(folders):
        limit = _limit(folder, group.version)
        if limit is not None:
            file = str(folder / _limit_name(group.version))
            found = LimitRecord(file=file, bytes=limit, above=found)
    return found or LimitRecord()


def lift_memory_limit(record: LimitRecord) -> None:
    """Lift a limit; the record restores it. Idempotent.

    Write the record down first: :func:`restore_memory_limit` takes it also in another
    process, after a crash.

    Raises:
        Refused: the kernel refuses (``internal``).
    """
    if record.above is not None:
        lift_memory_limit(record.above)
    if record.file:
        file = Path(record.file)
        _write(file, "max" if file.name == "memory.max" else "-1")


def restore_memory_limit(record: LimitRecord) -> bool:
    """Restore a lifted limit. Idempotent; true also when its group is gone.

    False when more than the limit is in use: v1 would refuse (EBUSY), v2 would kill a
    process to make it fit. Try again when memory has become free.
    """
    done = record.above is None or restore_memory_limit(record.above)
    file = Path(record.file)
    if not record.file or not file.exists():
        return done
    used = _number(file.with_name("memory.current"))
    if file.name == "memory.max" and used is not None and used > record.bytes:
        return False
    try:
        file.write_text(str(record.bytes), encoding="ascii")
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise _refused(file, error) from None
    return done


def create(parents: Iterable[Group], name: str) -> list[Group]:
    """Make a group of that name below each parent. Idempotent.

    Raises:
        Refused: the kernel refuses, e.g. because a v2 parent holds processes itself.
    """
    made = []
    for parent in parents:
        wanted = {"memory", "cpu"} & parent.controllers
        if parent.version == 2 and wanted:
            switches = " ".join(f"+{controller}" for controller in sorted(wanted))
            _write(parent.folder / "cgroup.subtree_control", switches)
        folder = parent.folder / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _refused(folder, error) from None
        made.append(parent._replace(folder=folder))
    return made


def _memory_group(pid: int) -> Group | None:
    return next((g for g in groups_of(pid) if "memory" in g.controllers), None)


def _limit_name(version: int) -> str:
    return "memory.max" if version == 2 else "memory.limit_in_bytes"


def _limit(folder: Path, version: int) -> int | None:
    limit = _number(folder / _limit_name(version))
    return None if limit is None or limit >= _NO_LIMIT else limit


def _upwards(group: Group) -> Iterator[Path]:
    folder = group.folder
    while (folder / "cgroup.procs").exists():
        yield folder
        folder = folder.parent


def _roots(mounts: Iterable[Mount], above: Path) -> dict[str, list[tuple[Path, str]]]:
    roots: dict[str, list[tuple[Path, str]]] = {}
    for mount in mounts:
        names = {"cgroup2": frozenset({""}), "cgroup": mount.super_options}
        for name in names.get(mount.kind, ()):
            target = above / mount.target.relative_to("/")
            roots.setdefault(name, []).append((target, mount.root))
    return roots


def _reach(roots: Iterable[tuple[Path, str]], path: str) -> Path | None:
    """A group's folder below a mount; each shows its hierarchy from a group on."""
    wanted = Path(path)
    for target, root in roots:
        if ".." in wanted.parts or not wanted.is_relative_to(root):
            continue
        folder = target / wanted.relative_to(root)
        # The host's root may be closed to us, where its first process has more rights.
        with contextlib.suppress(PermissionError):
            if folder.is_dir():
                return folder
    return None


def _up_to_pod(group: Group, pod: str) -> list[Path]:
    """The folder and those above it up to the pod's own; only itself without a pod."""
    folders = []
    for folder in _upwards(group):
        folders.append(folder)
        if _is_named(folder, pod):
            return folders
    return folders[:1]


def _is_named(folder: Path, pod: str) -> bool:
    return pod.replace("-", "_") in folder.name.replace("-", "_")


def _number(path: Path) -> int | None:
    content = _text(path).strip()
    return int(content) if content.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="ascii")
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> Refused:
    return Refused(Reason.INTERNAL, detail=f"{path}: {error}")
