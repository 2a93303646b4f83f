"""Programs whose parent has ended, and that still belong to the session."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, ptrace

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

_PR_SET_CHILD_SUBREAPER: Final = 36


class Orphans(Kind):
    """Programs whose parent has ended (``!train &`` in a notebook).

    Such a program is a child of the session's root, a "child subreaper", and still
    belongs to the session (setsid) that it came from. CRIU (4.1, 4.2:
    ``prepare_pstree_ids``) makes it as the child of a helper below that session's
    leader, and has the helper end. But it makes the root a subreaper only at its very
    end, so these children would go to the init, where no later dump finds them. So the
    root is made one earlier, by a system call forced upon it while it waits for an
    image of its own: it exists then, and no helper has ended.
    """

    def rewrite(self, back: Return) -> None:
        tasks, root = back.images.tasks(), back.root_pid
        led = {task.sid for task in tasks if task.pid == root}
        children = (task for task in tasks if task.ppid == root)
        # One that belongs to a session that neither of them leads.
        if any(task.sid not in {*led, task.pid} for task in children):
            adopt = functools.partial(_adopt, back.init_pid, root)
            back.when_asked[f"pagemap-{root}.img"] = adopt


def _adopt(init_pid: int, root_pid: int) -> None:
    inside = processes.inhabitants(processes.snapshot_init(init_pid))
    pids = [one.pid for one in inside if one.ns_pid == root_pid]
    try:
        with ptrace.stopped(pids[0]) as traced:
            traced.call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (IndexError, OSError) as error:
        why = "programs without a parent would be lost to the next suspend"
        raise RestoreFailed(
            Reason.RESTORE_FAILED, why=why, detail=str(error)
        ) from error
