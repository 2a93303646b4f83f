"""A resume that stops at the nap: who stays stopped, and whether that can be.

The programs that used a GPU stay as they were saved: stopped, with its memory in their
own. All else goes on, and what a person sends to them wakes them, as from any nap. So
no memory of a card is needed, and none is waited for.

It is decided while the whole tree still stands. Where it cannot be, the memory is moved
back at once, as without it: the server itself has GPU memory and could not answer, the
programs have too much open to be watched, or a kernel has to answer for itself, or
would be culled (``node.jupyter.stand_in``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.node.jupyter import stand_in
from jupyterhub_gpu_reclaim.node.nap import inputs

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.jupyter.stand_in import Link
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.requirements import Gpus
    from jupyterhub_gpu_reclaim.node.sessions.placements import Session

_log = logging.getLogger(__name__)


class LeftAsleep(NamedTuple):
    """Programs of a restored tree that do not go on."""

    programs: list[Process]
    gpus: Gpus  #: what they had
    links: list[Link]  #: over which the server was told that they are in use

    @property
    def pids(self) -> list[int]:
        """Of the programs, in the session's pid namespace."""
        return [program.ns_pid for program in self.programs]


def leave_asleep(
    accelerator: Accelerator,
    session: Session,
    gpus: Gpus,
    tree: Snapshot,
    *,
    stopped_before: list[int],
    answers: bool,
) -> LeftAsleep | None:
    """Prepare a restored tree to go on without its GPU memory; None: it cannot.

    Args:
        accelerator: of this machine.
        session: whose tree.
        gpus: what it had.
        tree: whole, and stopped.
        stopped_before: pids in the session of those that their user had stopped.
        answers: whether its server is going to be asked.
    """
    try:
        why, left = _try(accelerator, session, gpus, tree, stopped_before)
    except ReclaimError as error:
        why, left = str(error), None
    if left is not None and answers and tree.server in left.programs:
        why, left = "its server has GPU memory", None
    if left is None:
        _log.info("%s gets its GPU memory back at once: %s", session.key, why)
    return left


def _try(
    accelerator: Accelerator,
    session: Session,
    gpus: Gpus,
    tree: Snapshot,
    stopped_before: list[int],
) -> tuple[str, LeftAsleep | None]:
    users, shells = accelerator.emptied(gpus, tree)
    if not users:
        return "it has none", None
    programs = [p for p in (*shells, *users) if p.ns_pid not in stopped_before]
    try:
        inputs.find_inputs(session.init_pid, programs)
    except inputs.TooManyError:
        return "its programs have too much open to be watched", None
    links = stand_in.speak_for(session.init_pid, tree.server, programs)
    if links is None:
        return "a kernel has to answer for itself", None
    mine = gpus.only({user.ns_pid for user in users})
    # They have no memory, and must run on: a server that shows the GPU, for one.
    others = gpus.only(set(gpus.users) - set(mine.users))
    accelerator.fill(others if others.users else None, LimitRecord(), tree)
    return "", LeftAsleep(programs, mine, links)
