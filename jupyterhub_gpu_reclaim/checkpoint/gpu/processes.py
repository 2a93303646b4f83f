"""Finds which processes of a session use a GPU, and which only seem to.

Four kinds hold ``/dev/nvidia*``:

* **users**: the driver knows them (CUDA or NVML), and saves them itself;
* **stale** ones: children that were forked from a user. What they inherited is of no
  use to them, since a forked child cannot make CUDA calls, and it keeps CRIU from
  saving them: ``inherited_mappings`` takes it away;
* **stopped** ones (Ctrl-Z): the driver cannot be asked about them;
* **others**: they have opened a device themselves and the driver's checkpoint knows
  nothing of it (OpenGL, Vulkan). They cannot be saved.

A stale child is told from the others by the kernel (kcmp(2)): every descriptor is the
very open file of a user, and every mapping lies where a user has it. It only reads.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.processes import DEAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver, State
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: The driver's devices, and those that only MIG and confidential computing use.
DEVICES: Final = "/dev/nvidia"
_LIBRARIES: Final = ("/libcuda.so", "/libnvidia-ml.so")
_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What a process has of a GPU's devices."""

    descriptors: tuple[procfs.Descriptor, ...]
    mappings: tuple[procfs.Mapping, ...]

    def __bool__(self) -> bool:
        """Whether it has anything."""
        return bool(self.descriptors or self.mappings)


@dataclass(frozen=True, slots=True)
class User:
    """A process that the driver knows."""

    process: Process
    state: State


@dataclass(frozen=True, slots=True)
class Stale:
    """A forked child, and what it inherited."""

    process: Process
    held: Held


@dataclass(frozen=True, slots=True)
class Survey:
    """A session's processes as far as they have to do with GPUs."""

    users: tuple[User, ...] = ()
    stale: tuple[Stale, ...] = ()
    stopped: tuple[Process, ...] = ()
    others: tuple[Process, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to be done."""
        return bool(self.users or self.stale or self.stopped or self.others)

    @property
    def savable(self) -> frozenset[int]:
        """Host pids whose devices are no hindrance."""
        users = {user.process.pid for user in self.users}
        return frozenset(users | {child.process.pid for child in self.stale})


def held_by(pid: int) -> Held:
    """What a process has of a GPU's devices; nothing when it has ended."""
    return Held(
        tuple(d for d in procfs.descriptors(pid) if d.target.startswith(DEVICES)),
        tuple(m for m in procfs.mappings(pid) if m.path.startswith(DEVICES)),
    )


def survey(driver: Driver, snapshot: Snapshot) -> Survey:
    """Look at all processes of a session.

    Only those with a GPU's device or library are asked about, so that a session
    without a GPU costs no call of the driver.

    Raises:
        DriverError: the driver does not answer.
    """
    alive = [p for p in snapshot.processes if p.state not in DEAD]
    held = {p.pid: held_by(p.pid) for p in alive}
    concerned = [p for p in alive if held[p.pid] or _has_library(p.pid)]
    if not concerned or not driver.present():
        return Survey(others=tuple(p for p in concerned if held[p.pid]))
    stopped = tuple(p for p in concerned if p.stopped)
    asked = [p for p in concerned if not p.stopped]
    states = {p.pid: driver.state(p.pid) for p in asked}
    users = tuple(User(p, s) for p in asked if (s := states[p.pid]) is not None)
    proper = [user.process.pid for user in users]
    stale, others = [], []
    for process in asked:
        if states[process.pid] is not None or not held[process.pid]:
            continue
        if _inherited(process.pid, held, proper):
            stale.append(Stale(process, held[process.pid]))
        else:
            others.append(process)
    return Survey(users, tuple(stale), stopped, tuple(others))


def _has_library(pid: int) -> bool:
    """A saved process holds no device any more, but its library is mapped still."""
    return any(
        name in mapping.path for mapping in procfs.mappings(pid) for name in _LIBRARIES
    )


def _inherited(pid: int, held: dict[int, Held], users: Sequence[int]) -> bool:
    """Whether all that a process has came from one of the users, by fork."""
    mine = held[pid]
    for user in users:
        theirs = held[user]
        places = {(m.start, m.end, m.device, m.inode) for m in theirs.mappings}
        if all(
            any(_same_file(pid, fd, user, other) for other in _candidates(fd, theirs))
            for fd, _ in mine.descriptors
        ) and all((m.start, m.end, m.device, m.inode) in places for m in mine.mappings):
            return True
    return False


def _candidates(fd: int, held: Held) -> Iterator[int]:
    """The user's descriptors, that of the same number first: fork keeps numbers."""
    numbers = [descriptor.fd for descriptor in held.descriptors]
    yield from (number for number in numbers if number == fd)
    yield from (number for number in numbers if number != fd)


def _same_file(pid: int, fd: int, other_pid: int, other_fd: int) -> bool:
    """Whether both descriptors are one open file; False also when one has gone."""
    number = _SYS_KCMP.get(platform.machine())
    if number is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, pid, other_pid, _KCMP_FILE, fd, other_fd) == 0)
