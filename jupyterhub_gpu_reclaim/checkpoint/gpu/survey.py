"""Finds which processes of a session use a GPU, and what hinders a capture of them.

It only reads. :func:`survey` tells apart what holds ``/dev/nvidia*``: **users**, which
the driver knows and saves; **stale** ones, whose handles came from a user and are of no
use (``cuda.give_up`` takes them away); **stopped** ones, about which the driver cannot
be asked; and **others**, which opened a device themselves (OpenGL, Vulkan) and cannot
be saved. :func:`examine_clients` detects NVIDIA's MPS and profilers, and
:func:`examine_sharing` memory that is shared between processes or cards. They report
only what is certain; what they miss, the driver refuses, and the capture is rolled
back.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import DriverError
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import tree_inodes
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.scheduling import KCMP_FILE, compared
from jupyterhub_gpu_reclaim.linux.sock_diag import unix_sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver, Memory
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

#: The driver's devices, and those that only MIG and confidential computing use.
DEVICES: Final = "/dev/nvidia"
_LIBRARIES: Final = ("/libcuda.so", "/libnvidia-ml.so")


@dataclass(frozen=True, slots=True)
class HeldDevices:
    descriptors: tuple[procfs.Descriptor, ...]
    mappings: tuple[procfs.Mapping, ...]

    def __bool__(self) -> bool:
        return bool(self.descriptors or self.mappings)


@dataclass(frozen=True, slots=True)
class Survey:
    users: tuple[Process, ...] = ()
    stale: tuple[Process, ...] = ()
    stopped: tuple[Process, ...] = ()
    others: tuple[Process, ...] = ()

    @property
    def savable(self) -> frozenset[int]:
        """Host pids whose devices are no hindrance."""
        return frozenset(process.pid for process in (*self.users, *self.stale))


def held_by(pid: int) -> HeldDevices:
    return HeldDevices(
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
    held = {p.pid: held_by(p.pid) for p in snapshot.alive}
    concerned = [p for p in snapshot.alive if held[p.pid] or _has_library(p.pid)]
    if not concerned or not driver.present():
        return Survey(others=tuple(p for p in concerned if held[p.pid]))
    stopped = tuple(p for p in concerned if p.stopped)
    asked = [p for p in concerned if not p.stopped]
    states = {p.pid: driver.state(p.pid) for p in asked}
    users = tuple(p for p in asked if states[p.pid] is not None)
    proper = [user.pid for user in users]
    stale, others = [], []
    for process in asked:
        if states[process.pid] is not None or not held[process.pid]:
            continue
        if _inherited(process.pid, held, proper):
            stale.append(process)
        else:
            others.append(process)
    return Survey(users, tuple(stale), stopped, tuple(others))


def _has_library(pid: int) -> bool:
    """A saved process holds no device any more, but its library is mapped still."""
    return any(
        name in mapping.path for mapping in procfs.mappings(pid) for name in _LIBRARIES
    )


# A forked child cannot make CUDA calls, nor does a program that has inherited
# descriptors (orted, MPI's daemon) use them. It is told by the kernel (kcmp(2)): every
# descriptor is the very open file of a user, and every mapping is where a user has it.
def _inherited(pid: int, held: dict[int, HeldDevices], users: Sequence[int]) -> bool:
    mine = held[pid]
    for user in users:
        theirs = held[user]
        places = {(m.start, m.end, m.device, m.inode) for m in theirs.mappings}
        if all(
            any(_same_file(pid, fd, user, other) for other, _ in theirs.descriptors)
            for fd, _ in mine.descriptors
        ) and all((m.start, m.end, m.device, m.inode) in places for m in mine.mappings):
            return True
    return False


def _same_file(pid: int, fd: int, other_pid: int, other_fd: int) -> bool:
    try:
        return compared(pid, other_pid, KCMP_FILE, fd, other_fd) == 0
    except OSError:
        return False


#: ``nvidia-cuda-mps-server`` and ``…-control`` as the kernel cuts their names.
_MPS: Final = "nvidia-cuda-mps"
#: How the files begin that a tool puts into the process which it looks at.
_TOOLS: Final = {
    "libToolsInjection": "Nsight Systems",
    "libcuda-injection.so": "Nsight Compute",
    "libsanitizer-collection.so": "Compute Sanitizer",
    "libcuinj64.so": "nvprof",
}


def examine_clients(
    processes: Sequence[Process], known: Collection[int]
) -> Iterator[Finding]:
    shared = clients_of_mps([process.pid for process in processes]) | set(known)
    for process in processes:
        if process.pid in shared:
            yield finding(Reason.GPU_MPS, **process.facts)
        if tool := tool_in(process.pid):
            yield finding(Reason.GPU_PROFILED, **process.facts, tool=tool)


def clients_of_mps(pids: Collection[int]) -> set[int]:
    """Pids of processes that use their GPU through MPS, or are its server."""
    if not pids:
        return set()
    found = {pid for pid in pids if procfs.name(pid).startswith(_MPS)}
    named = (pid for pid in procfs.pids() if procfs.name(pid).startswith(_MPS))
    servers = tree_inodes(named)
    return found | {pid for pid in pids if servers and _talks_to(pid, servers)}


# CUPTI alone says nothing: PyTorch always loads it. A debugger is found by the
# preflight.
def tool_in(pid: int) -> str:
    """The profiler or checker that is loaded in a process; empty: none is known."""
    for mapping in procfs.mappings(pid):
        file = mapping.path.rpartition("/")[2]
        for beginning, tool in _TOOLS.items():
            if file.startswith(beginning):
                return tool
    return ""


# A client of MPS has a connection to nvidia-cuda-mps-server, and maps nothing by which
# it could be known (driver 580). The driver cannot save what lies with a server that
# others use.
def _talks_to(pid: int, servers: Collection[int]) -> bool:
    """Whether a process holds a socket whose other end is one of those.

    The two may live in network namespaces of their own: a socket in the file system is
    the same for both.
    """
    mine = tree_inodes([pid])
    if not mine:
        return False
    try:
        there = unix_sockets(pid)
    except Refused:
        return False  # it has ended
    return any(
        one.is_connected and one.inode in mine and one.peer in servers for one in there
    )


_log = logging.getLogger(__name__)

#: A shared event's file: user id, the owner's pid in its own namespace (hexadecimal).
_EVENTS: Final = re.compile(r"/cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\.[0-9a-f]+")


#: What the driver does not fill again, if another card may read it. Its contexts count,
#: too: how large they are differs by card and driver.
_PEER_BYTES: Final = 512 << 20


# The driver empties a process that has memory of others open (CUDA IPC) without an
# error, and can never fill it again: not after the one that the memory belongs to, not
# before, not both at once, not even when the other was left alone (H200, driver 580).
# No mapping and no descriptor shows it, but the kernel's driver counts the memory that
# a process has of others (``driver.Memory``). In two cases that count says nothing, and
# both are refused as well: memory whose owner has ended counts as the other's own
# (PyTorch opens an event with it, whose file names the owner:
# cuda.shm.<uid>.<pid>.<n>); and a driver that does not tell: then two processes with a
# GPU may share memory. Shared events are restored.
def examine_sharing(
    driver: Driver,
    users: Sequence[Process],
    snapshot: Snapshot,
    counted: Collection[int],
) -> Iterator[Finding]:
    """Find processes that could not be filled again because of who reads their memory.

    ``users`` are those that the driver knows, ``counted`` the host pids of all that
    have memory of a GPU, as NVML counts.
    """
    memory = _ask_memory(driver, [process.pid for process in users], counted)
    alive = {p.ns_pid for p in snapshot.alive}
    for process in users:
        mine = None if memory is None else memory[process.pid]
        if (mine and mine.borrowed) or _event_owners(process.pid) - alive:
            yield finding(Reason.GPU_IPC, **process.facts)
        if _is_large_on_several_cards(process.pid, mine) and _may_reach(driver):
            yield finding(Reason.GPU_PEERS, **process.facts)
    if memory is None and len(users) > 1:
        others = len(users) - 1
        yield finding(Reason.GPU_IPC_UNKNOWN, **users[0].facts, others=others)


def _ask_memory(
    driver: Driver, pids: Sequence[int], counted: Collection[int]
) -> Mapping[int, Memory] | None:
    """GPU memory by pid; None when the driver reports none, or an impossible value."""
    if not pids:
        return {}
    try:
        memory = driver.memory(pids)
    except DriverError as error:
        _log.warning("- the driver does not tell who shares GPU memory: %s", error)
        return None
    for pid in pids:
        if pid in counted and not any(memory[pid].own):
            _log.warning(
                "- driver and NVML disagree on the GPU memory of process %d", pid
            )
            return None
    return memory


# One allocation of 512 MiB or more that another card may read, by cuCtxEnablePeerAccess
# (PyTorch's copies between cards, all that JAX does) or cuMemSetAccess, is emptied
# without an error and never filled again (two H200, driver 580.159; memory of pools
# is). Nothing outside the process tells what may read what.
def _is_large_on_several_cards(pid: int, memory: Memory | None) -> bool:
    if memory is None:
        # All that it could have used: a card that it may see is opened in any case.
        targets = {d.target.removeprefix(DEVICES) for d in held_by(pid).descriptors}
        return sum(map(str.isdecimal, targets)) > 1
    used = [size for size in memory.own if size]
    return len(used) > 1 and max(used) >= _PEER_BYTES


def _may_reach(driver: Driver) -> bool:
    try:
        return driver.peers()
    except DriverError:
        return True


def _event_owners(pid: int) -> set[int]:
    found = (_EVENTS.search(mapping.path) for mapping in procfs.mappings(pid))
    return {int(match[1], 16) for match in found if match}
