"""Phase: what a session is now, computed from those who know, and stored nowhere.

Pure: agent, store and Hub say what there is (``Observed``, without ``known``), and
people say what the store does not show yet (``Wishes``). No row of the journal is
asked. The first line that fits counts.

=============================  ==========================  =============================
tree (agent)                   Hub                         phase
=============================  ==========================  =============================
no answer of agent or store    any                         not known¹
running, napping               spawning                    RESUMING, if it was restored
                               any                         RUNNING, NAPPING
capturing, for a save point    any                         RUNNING
capturing                      any                         SUSPENDING
captured, in what is saved     any                         RELEASING
captured, otherwise            any                         SUSPENDING: to be thawed
holding, restoring             any but stopped             RESUMING
                               spawning                    RESUMING, if there is a
                                                           current checkpoint
                               stopping                    RELEASING, likewise
                               any                         SUSPENDED, likewise
                               any                         STOPPED
=============================  ==========================  =============================

¹ but a tree that runs is known to, whatever the store says.

"In what is saved" is in a checkpoint that the store has. What the Hub takes for running
and has no tree has ended: the Hub has not looked yet, or is to be asked for a stop.

The current checkpoint is the newest (by stamp) that is not set aside. Where a person
has set one aside, nothing older of that session is current either, unless a later word
(by the marks' numbers) has chosen that. While a session runs, it is what the session
goes back to: its newest save point, or what it came from.

The question is why a person must be asked before the current checkpoint comes back. It
is computed where a session has no tree: ``ENDED_SINCE_SAVED`` where the checkpoint is a
save point, after which the session went on. What the Hub's pointer has to be compared
with (``SAVED_FOUND``, ``SAVED_OLDER``) is asked with a start.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import HubState, Phase, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed


class Wishes(NamedTuple):
    """Words of people that the store may not show yet."""

    #: by checkpoint: whether it is set aside or deleted (True), or chosen (False)
    said: Mapping[str, bool] = {}


class Derived(NamedTuple):
    """A session as it is now."""

    phase: Phase | None  #: None: not known
    checkpoint: str = ""  #: the current one; empty: none
    question: Reason | None = None


def derive(seen: Observed, wishes: Wishes) -> Derived:
    """Compute a session's phase, its current checkpoint, and what its user is asked.

    Args:
        seen: what agent, store and Hub say; ``None`` is no answer.
        wishes: what people have said.
    """
    running = seen.running()
    current = (
        _goes_back_to(seen, wishes, running) if running else _current(seen, wishes)
    )
    saved = current.id if current else ""
    if running is not None:
        back = seen.hub is HubState.SPAWNING and (running.origin or running.checkpoint)
        naps = running.state is TreeState.NAPPING
        runs = Phase.NAPPING if naps else Phase.RUNNING
        return Derived(Phase.RESUMING if back else runs, saved)
    if seen.silent or seen.hub is None:
        return Derived(None)
    phase = _with_tree(seen)
    if phase is not None:
        return Derived(phase, saved)
    if current is None:
        return Derived(Phase.STOPPED)
    question = Reason.ENDED_SINCE_SAVED if current.goes_on else None
    phases = {HubState.SPAWNING: Phase.RESUMING, HubState.STOPPING: Phase.RELEASING}
    return Derived(phases.get(seen.hub, Phase.SUSPENDED), saved, question)


def _with_tree(seen: Observed) -> Phase | None:
    """The phase of a session whose tree stands, and does not run; None: none stands."""
    frozen = seen.frozen()
    if frozen is not None and frozen.state is TreeState.CAPTURING:
        return Phase.RUNNING if frozen.operation == "save" else Phase.SUSPENDING
    if frozen is not None:
        saved = seen.checkpoint(frozen.checkpoint) is not None
        return Phase.RELEASING if saved else Phase.SUSPENDING
    return Phase.RESUMING if seen.left() and seen.hub is not HubState.STOPPED else None


def is_aside(info: CheckpointInfo, said: Mapping[str, bool]) -> bool:
    """Whether a person has set that checkpoint aside, as ``Wishes.said`` or a mark."""
    return said.get(info.id, info.aside is not None)


def is_left(
    info: CheckpointInfo, saved: Iterable[CheckpointInfo], said: Mapping[str, bool]
) -> bool:
    """Whether something newer of its session was set aside since the last word on it.

    Args:
        info: the checkpoint.
        saved: all of that name.
        said: as ``Wishes.said``.
    """
    word = _word(info, said)
    return any(
        is_aside(other, said) and other.stamp > info.stamp and _word(other, said) > word
        for other in saved
        if other.session == info.session
    )


def _word(info: CheckpointInfo, said: Mapping[str, bool]) -> tuple[float, int]:
    """Number of the last word on it; what the store does not show yet is later."""
    return (math.inf, 1 - said[info.id]) if info.id in said else info.word


def _current(seen: Observed, wishes: Wishes) -> CheckpointInfo | None:
    saved, said = seen.saved or (), wishes.said
    its = [i for i in saved if not is_aside(i, said) and not is_left(i, saved, said)]
    return max(its, key=lambda info: info.stamp, default=None)


def _goes_back_to(
    seen: Observed, wishes: Wishes, running: Tree
) -> CheckpointInfo | None:
    """What a running session goes back to: its newest save point, or its parent."""
    its = [
        info
        for info in seen.saved or ()
        if not is_aside(info, wishes.said)
        and (
            info.id == (running.origin or running.checkpoint)
            or (info.goes_on and info.incarnation == running.incarnation)
        )
    ]
    return max(its, key=lambda info: info.stamp, default=None)
