"""Keeps a session's orphans below its root through a restore.

A program whose parent has ended (``!train &`` in a notebook) is a child of the
session's root, which is a "child subreaper", and still belongs to the session (setsid)
of the kernel or the shell that it came from. CRIU (4.1, 4.2: ``prepare_pstree_ids``)
makes such a process as the child of a helper below that leader, so that it inherits the
session, and has the helper end. But it makes the root a subreaper only at its very end,
so these children would go to the init, where no later dump finds them, and they cannot
be moved back.

So the root is made one earlier, by a system call forced upon it while it waits for an
image of its own from us: it exists then, and no helper has ended yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, ptrace

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.criu.process import Session
    from jupyterhub_gpu_reclaim.checkpoint.memory.pages import Source

#: Seconds in which CRIU's process must stand still, and do its call.
SECONDS: Final = 10.0
_PRCTL: Final = 157  # x86-64
_PR_SET_CHILD_SUBREAPER: Final = 36


class Adoption:
    """Makes the root a subreaper in time, where it is needed.

    Args:
        session: the holding init.
        source: where CRIU's images come from.
        root_pid: of the tree's root, in the session's namespace.
    """

    def __init__(self, session: Session, source: Source, root_pid: int) -> None:
        self._session = session
        self._root_pid = root_pid
        self._needed = _has_orphans(source, root_pid)

    def before(self, name: str) -> None:
        """CRIU waits for that image.

        Raises:
            RestoreFailed: the root cannot be made to do it.
        """
        if not self._needed or name != f"pagemap-{self._root_pid}.img":
            return
        init = processes.snapshot_init(self._session.init_pid, self._session.init_start)
        inside = processes.inhabitants(init)
        pids = [one.pid for one in inside if one.ns_pid == self._root_pid]
        try:
            with ptrace.stopped(pids[0], seconds=SECONDS) as traced:
                traced.call(_PRCTL, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        except (IndexError, OSError) as error:
            why = "programs without a parent would be lost to the next suspend"
            raise RestoreFailed(
                Reason.RESTORE_FAILED, why=why, detail=str(error)
            ) from error


def _has_orphans(source: Source, root_pid: int) -> bool:
    """Whether a child of the root belongs to a session that neither of them leads."""
    if source.size("pstree.img") is None:
        return False
    tree = b"".join(source.stream("pstree.img"))
    entries: list[Any] = [
        images.parse("pstree_entry", payload)
        for payload in images.split(tree, images.PSTREE_MAGIC)
    ]
    own = {entry.sid for entry in entries if entry.pid == root_pid}
    return any(
        entry.ppid == root_pid and entry.sid not in {*own, entry.pid}
        for entry in entries
    )
