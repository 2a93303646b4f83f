"""Finds processes that have GPU memory of others open, through CUDA IPC.

The driver empties such a process without an error, and can never fill it again: not
after the one that the memory belongs to, not before, not both at once, not even when
the other was left alone (H200, driver 580). No attempt leaves it whole, so it has to be
known before anything is touched. No mapping and no descriptor shows it, but the
kernel's driver counts the memory that a process has of others (``driver.Memory``):
legacy handles, shareable handles, pools, and what a process has exported and imported
again itself. Peer access between cards does not count there.

In two cases that count says nothing, and both are refused as well:

* memory whose owner has ended counts as the other's own. PyTorch opens an event with
  the memory, and the file of the event names the owner: ``cuda.shm.<uid>.<pid>.<n>``;
* a driver that does not tell: then two processes with a GPU may share its memory.

Shared events are restored. It only reads.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import DriverError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.processes import DEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver, Memory
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_log = logging.getLogger(__name__)

#: A shared event's file: user id, the owner's pid in its own namespace (hexadecimal).
_EVENTS: Final = re.compile(r"/cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\.[0-9a-f]+")


class Shared(NamedTuple):
    """A process that could not be filled again, and why not."""

    reason: Reason
    facts: dict[str, Any]  #: of the reason's sentence


def examine(
    driver: Driver,
    users: Sequence[Process],
    snapshot: Snapshot,
    counted: Collection[int],
) -> Iterator[Shared]:
    """Which of those processes could not be filled again.

    Args:
        driver: this machine's.
        users: processes that the driver knows.
        snapshot: the session's tree now.
        counted: host pids of all that have memory of a GPU, as NVML counts.
    """
    memory = _ask(driver, [process.pid for process in users], counted)
    alive = {p.ns_pid for p in snapshot.processes if p.state not in DEAD}
    for process in users:
        borrowed = memory is not None and memory[process.pid].borrowed
        if borrowed or _owners(process.pid) - alive:
            facts = {"pid": process.ns_pid, "name": process.name}
            yield Shared(Reason.GPU_IPC, facts)
    if memory is None and len(users) > 1:
        facts = {"pid": users[0].ns_pid, "name": users[0].name}
        yield Shared(Reason.GPU_IPC_UNKNOWN, {**facts, "others": len(users) - 1})


def _ask(
    driver: Driver, pids: Sequence[int], counted: Collection[int]
) -> Mapping[int, Memory] | None:
    """What the driver counts; None when it does not report, or an impossible value."""
    if not pids:
        return {}
    try:
        memory = driver.memory(pids)
    except DriverError as error:
        _log.warning("- it is not known who shares a GPU's memory: %s", error)
        return None
    for pid in pids:
        if pid in counted and not memory[pid].own:
            _log.warning("- the driver and NVML differ about process %d", pid)
            return None
    return memory


def _owners(pid: int) -> set[int]:
    """The pids of those whose events a process has mapped."""
    found = (_EVENTS.search(mapping.path) for mapping in procfs.mappings(pid))
    return {int(match[1], 16) for match in found if match}
