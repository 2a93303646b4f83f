"""Removes inherited GPU descriptors and mappings from forked children.

It runs after the GPU was emptied and before CRIU dumps. The driver's checkpoint gives
up a process's own descriptors and mappings of the devices, not the copies in its forked
children, which CRIU cannot save. The children have no use for them (``processes``), so
they are made to give them up themselves: every descriptor is replaced by one of
``/dev/null`` and every mapping by an inaccessible one, so that neither the numbers nor
the addresses are reused.

It is not undone when the capture fails afterwards: there is nothing to give back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.gpu.processes import DEVICES, held_by
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, ptrace

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.gpu.processes import Held
    from jupyterhub_gpu_reclaim.linux.processes import Process

#: Seconds in which the threads of one process must stand still, and it do its calls.
SECONDS: Final = 10.0

# x86-64 system calls and their constants.
_CLOSE, _MMAP, _OPENAT, _DUP3 = 3, 9, 257, 292
_AT_FDCWD, _READ_WRITE, _CLOEXEC = -100, 2, 0o2000000
_NO_ACCESS, _PRIVATE_ANONYMOUS_FIXED_NORESERVE = 0, 0x2 | 0x20 | 0x10 | 0x4000


def give_up(process: Process) -> None:
    """Make a stale child give up every GPU device. Idempotent.

    Must be called for children only that ``processes`` calls stale.

    Raises:
        ReclaimError: it could not be made to (``gpu_stale_child``); it runs as before.
    """
    with processes.held(process) as pidfd:
        if pidfd is None:
            return
        try:
            with ptrace.stopped(process.pid, seconds=SECONDS) as traced:
                # Looked at now that nothing of it moves.
                _replace(traced, held_by(process.pid))
        except OSError as error:
            if processes.start_time(process.pid) != process.start_time:
                return  # it has ended: all the better
            raise _failed(process, str(error)) from error
    left = held_by(process.pid)
    if left:
        raise _failed(process, f"still holds {DEVICES}*")


def _replace(traced: ptrace.Traced, held: Held) -> None:
    if held.descriptors:
        with traced.text("/dev/null") as path:
            null = traced.call(_OPENAT, _AT_FDCWD, path, _READ_WRITE | _CLOEXEC)
        for descriptor in held.descriptors:
            traced.call(_DUP3, null, descriptor.fd, _CLOEXEC)
        traced.call(_CLOSE, null)
    for mapping in held.mappings:
        traced.call(
            _MMAP,
            mapping.start,
            mapping.end - mapping.start,
            _NO_ACCESS,
            _PRIVATE_ANONYMOUS_FIXED_NORESERVE,
            -1,
            0,
        )


def _failed(process: Process, detail: str) -> ReclaimError:
    return ReclaimError(
        Reason.GPU_STALE_CHILD, pid=process.ns_pid, name=process.name, detail=detail
    )
