"""Detects NVIDIA's MPS and profilers in a process's use of its GPU.

It reports only what is certain; what it misses, the driver refuses, and the capture is
rolled back. It only reads.

* A client of MPS (Multi-Process Service) has a connection to ``nvidia-cuda-mps-server``
  and shares memory with it that the server calls ``mps.shm.<uid>.<pid>`` (its log,
  driver 580). NVML knows the clients, too: ``ProcessUse.mps``. The driver cannot save
  what lies with a server that others use.
* A profiler or checker of NVIDIA's has a library of its own in the process. CUPTI alone
  says nothing: PyTorch always loads it. A debugger is found by the preflight (ptrace).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import tree_inodes
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import unix_streams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process

#: ``nvidia-cuda-mps-server`` and ``…-control`` as the kernel cuts their names.
_MPS: Final = "nvidia-cuda-mps"
_MPS_MEMORY: Final = "mps.shm."
#: How the files begin that a tool puts into the process which it looks at.
_TOOLS: Final = {
    "libToolsInjection": "Nsight Systems",
    "libcuda-injection.so": "Nsight Compute",
    "libsanitizer-collection.so": "Compute Sanitizer",
    "libcuinj64.so": "nvprof",
}


def examine(processes: Sequence[Process], known: Collection[int]) -> Iterator[Finding]:
    """What keeps their GPUs from being saved.

    Args:
        processes: that have to do with a GPU.
        known: host pids of those that the driver's library calls clients of MPS.
    """
    shared = clients_of_mps([process.pid for process in processes]) | set(known)
    for process in processes:
        pid, name = process.ns_pid, process.name
        if process.pid in shared:
            yield finding(Reason.GPU_MPS, pid=pid, name=name)
        if tool := tool_in(process.pid):
            yield finding(Reason.GPU_PROFILED, pid=pid, name=name, tool=tool)


def clients_of_mps(pids: Collection[int]) -> set[int]:
    """Those of these processes that use their GPU through MPS, or are its server."""
    if not pids:
        return set()
    found = {pid for pid in pids if procfs.name(pid).startswith(_MPS)}
    found |= {pid for pid in pids if any(_MPS_MEMORY in file for file in _files(pid))}
    servers = tree_inodes(_servers())
    return found | {pid for pid in pids if servers and _talks_to(pid, servers)}


def tool_in(pid: int) -> str:
    """The profiler or checker that is loaded in a process; empty: none is known."""
    for file in _files(pid):
        for beginning, tool in _TOOLS.items():
            if file.startswith(beginning):
                return tool
    return ""


def _files(pid: int) -> Iterator[str]:
    """The names of all files that a process has mapped."""
    for mapping in procfs.mappings(pid):
        yield mapping.path.rpartition("/")[2]


def _servers() -> Iterator[int]:
    """The pids of MPS's own programs on this machine."""
    for pid in procfs.pids():
        if procfs.name(pid).startswith(_MPS):
            yield pid


def _talks_to(pid: int, servers: Collection[int]) -> bool:
    """Whether a process holds a socket whose other end is one of those.

    The two may live in network namespaces of their own: a socket in the file system is
    the same for both.
    """
    mine = tree_inodes([pid])
    if not mine:
        return False
    try:
        streams = unix_streams(pid)
    except Refused:
        return False  # it has ended
    return any(one.inode in mine and one.peer in servers for one in streams)
