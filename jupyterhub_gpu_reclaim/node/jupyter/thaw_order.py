"""Thaws a restored tree so that its server hears of its kernels before its cullers run.

A culler that is due at the return must find the kernels awake: their answers to the
wake-up have to lie in the server's queues when its event loop turns for the first time,
and the loop has to look there before it looks at the clock. So the server's first
thread, which runs that loop, is held while its other threads take the answers in
(``linux.ptrace``), and it restarts the wait in which it was saved
(``checkpoint.tree.interrupted_waits``). ``wake_server`` decides what is sent.

Nothing depends on success: a server that cannot be held continues with the others, and
if the agent ends meanwhile, the kernel releases the held thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.tree.interrupted_waits import wait_again
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import ptrace
from jupyterhub_gpu_reclaim.node.operations import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.tree.restore import RestoreResult
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.node.compat.requirements import World
    from jupyterhub_gpu_reclaim.node.jupyter.wake_server import WakeUp

#: An idle kernel answers within milliseconds. Whether a kernel that computes will is
#: unknown, and its user waits for the server.
_HOLD_SECONDS: Final = 0.5
#: What a kernel says to all comes by another of its threads than the answer to us, and
#: through a thread of the server: at least this long after it, or as long as the
#: answers took, where all of that is slow.
_SETTLE_SECONDS: Final = 0.05

_log = logging.getLogger(__name__)


def rewrite(there: checkpoint_files.Saved) -> dict[str, bytes]:
    """CRIU's images as they are to be given to it, by their names.

    Raises:
        RestoreFailed: the server's is damaged.
        StoreError: likewise.
    """
    name = f"core-{there.world.server}.img"
    # One without a port is not going to be woken.
    if (
        not there.identity.port
        or checkpoint_files.IMAGES + name not in there.checkpoint
    ):
        return {}
    return {name: wait_again(there.checkpoint.read(checkpoint_files.IMAGES + name))}


def go_on(wake: WakeUp, result: RestoreResult, world: World) -> None:
    """Thaw the tree, the server's loop last; blocks for 1.5 seconds at most.

    Raises:
        ReclaimError: as ``checkpoint.tree.restore.proceed``.
    """
    with _held(result.tree, world.server if wake.kernels else 0) as is_held:
        proceed(result, world.stopped)
        if is_held:
            begun = time.monotonic()
            complete = wake.wait(_HOLD_SECONDS)
            took = time.monotonic() - begun
            time.sleep(max(_SETTLE_SECONDS, took if complete else 0.0))


@contextlib.contextmanager
def _held(tree: Snapshot, server: int) -> Iterator[bool]:
    """The server's first thread stands inside the block; whether it does."""
    pids = [process.pid for process in tree.processes if process.ns_pid == server]
    with contextlib.ExitStack() as stack:
        try:
            for pid in pids:
                # It is stopped, so that there will be no others.
                others = set(ptrace.tasks(pid)) - {pid}
                held = ptrace.standing(pid, but=others, seconds=_HOLD_SECONDS)
                stack.enter_context(held)
        except ptrace.TraceFailed as error:
            _log.info("- the server goes on with its kernels: %s", error)
            pids = []
        yield bool(pids)
