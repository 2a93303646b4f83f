"""Writes into the row what a session has been found to be, and orders ends.

What it is was computed (``phase.py``); here stands what it means for what is kept, for
the counters and for the history. Each is one transaction.

An order to end without an answer may still be carried out. So its incarnation is not
the session any more, however well it runs: once adopted, it would be ended under its
user's hands. The next service need not know of it: what an agent has shown to a higher
term it does not end for us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec, endings
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused
from jupyterhub_gpu_reclaim.common.models import HubState, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import moment
from jupyterhub_gpu_reclaim.controlplane import phase, retention
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    Intent,
    SessionEvent,
    SessionRow,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE
from jupyterhub_gpu_reclaim.controlplane.settle import Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        Failure,
        SessionKey,
        Tree,
    )
    from jupyterhub_gpu_reclaim.controlplane.naps import Napper
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed
    from jupyterhub_gpu_reclaim.controlplane.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
    from jupyterhub_gpu_reclaim.controlplane.suspend import Suspender


async def end(sessions: Sessions, key: SessionKey, incarnation: str) -> None:
    """End an incarnation; one that is not there has ended.

    Raises:
        Unreachable: no answer; it may have ended, or end later.
        Refused: it is being captured.
    """
    before = is_ordered(sessions, key, incarnation)
    sessions.runtime(key).ending |= {incarnation}
    try:
        await sessions.agent.order(incarnation, orders.Kill())
    except NotFound:
        pass
    except Refused:
        if not before:  # else an earlier order may still be on its way
            forget(sessions, key, incarnation)
        raise
    forget(sessions, key, incarnation)


def is_ordered(sessions: Sessions, key: SessionKey, incarnation: str) -> bool:
    return incarnation in sessions.runtime(key).ending


def forget(sessions: Sessions, key: SessionKey, incarnation: str) -> None:
    """Forget an order: it was carried out, or the Hub says that the session runs."""
    sessions.runtime(key).ending -= {incarnation}


def vanished(
    sessions: Sessions,
    row: SessionRow,
    told: Failure | None = None,
    **changes: Any,
) -> SessionRow:
    """Note a session's end, with what the cluster or its spawner says of it."""
    unknown = codec.failure_of(endings.by_itself("how is not known"))
    failure = sessions.agent.ending(row.incarnation) or told or unknown
    sessions.counters.ends.labels(failure.code).inc()
    return sessions.apply(
        row.key,
        SessionEvent.VANISHED,
        failure=failure,
        **{"checkpoint": "", "attempt": "", **changes},
    )


@dataclass(eq=False)
class Taker:
    sessions: Sessions
    suspender: Suspender
    resumer: Resumer
    napper: Napper

    def take(
        self,
        row: SessionRow,
        action: Action,
        observed: Observed,
        remembered: Collection[str] = (),
    ) -> None:
        """Take what a session is, and what is saved of it, into the journal.

        ``remembered``: ids by which the Hub remembers it; empty: none, or not asked.
        """
        if action.kind is not ActionKind.TAKE:
            raise AssertionError(f"{action} is nothing to be taken")
        now, tree, saved = action.phase, action.tree, action.saved
        own = tree is None or tree.incarnation == row.incarnation
        if now in LIVE and own and row.phase is Phase.RESUMING:
            answered = observed.hub is not HubState.STOPPED
            self.resumer.restored(row, answered=answered)
        elif now in LIVE and tree is not None:
            self._take_running(row, tree, now, observed)
        elif now is Phase.SUSPENDED:
            self._take_suspended(row, saved, observed, remembered)
        elif now is Phase.STOPPED:
            vanished(self.sessions, row)
        elif now is Phase.SUSPENDING and tree is not None:
            self.suspender.found(row, tree)
        elif row.phase is Phase.SUSPENDING and saved is not None:
            self.suspender.committed(row, saved)
        elif saved is not None:
            self.sessions.apply(
                row.key,
                SessionEvent.COMMITTED,
                checkpoints=self.sessions.found([saved]),
                **_columns(row, saved, [saved]),
            )

    def _take_suspended(
        self,
        row: SessionRow,
        current: CheckpointInfo | None,
        observed: Observed,
        remembered: Collection[str],
    ) -> None:
        if row.phase is Phase.RELEASING:
            self.suspender.released(row)
        elif row.phase is Phase.RESUMING:
            self.resumer.failed(row, failure_of(Reason.CANCELLED))
        elif current is not None and current.stamp > row.stamp:
            self._found(row, current, observed, remembered)
        elif current is not None:
            ended = self.sessions.agent.ending(row.incarnation)
            lost(self.sessions, row, current, ended)

    def _take_running(
        self, row: SessionRow, tree: Tree, now: Phase, observed: Observed
    ) -> None:
        own = tree.incarnation == row.incarnation
        if own and row.phase in {Phase.SUSPENDING, Phase.RELEASING}:
            self.suspender.rolled_back(row, tree)
        elif not own or row.phase not in LIVE:
            running(self.sessions, row, tree, observed)
        elif now is not row.phase and now is Phase.NAPPING:
            self.napper.found_napping(row, tree)
        elif now is not row.phase and row.phase is Phase.NAPPING:
            self.napper.found_awake(row, tree)
        else:
            changes = way_back(row, tree, observed, self.sessions.clock.now())
            self.sessions.update(row.key, **changes)

    def _found(
        self,
        row: SessionRow,
        newest: CheckpointInfo,
        observed: Observed,
        remembered: Collection[str],
    ) -> None:
        """Take a checkpoint that is newer than what the row says for the session.

        Its user is asked before it comes back, unless the Hub remembers it, too.
        """
        ruled = bool(self.sessions.saved_every(row.key))
        failure: Failure | None = None
        if phase.went_on(newest, observed.said, ruled=ruled):
            now = self.sessions.clock.now()
            failure = _ended_since_saved(newest, 0.0, now)
        elif not retention.is_of(newest, remembered):
            failure = failure_of(Reason.SAVED_FOUND, when=moment(newest.created))
        self.sessions.apply(
            row.key,
            SessionEvent.FOUND_SAVED,
            failure=failure,
            checkpoints=self.sessions.found([newest]),
            **_columns(row, newest, observed.saved or ()),
        )


def running(
    sessions: Sessions, row: SessionRow, tree: Tree, observed: Observed
) -> SessionRow:
    """Adopt a tree that the journal did not know as running.

    What it came from is kept as after a return, without limit if the Hub says that
    nothing runs: it may never have answered.
    """
    came_from = row.checkpoint == (tree.origin or tree.checkpoint) != ""
    forget(sessions, row.key, tree.incarnation)
    now, answered = sessions.clock.now(), observed.hub is not HubState.STOPPED
    return sessions.apply(
        row.key,
        SessionEvent.FOUND_RUNNING,
        account=tree.account or row.account,
        session=tree.session,
        incarnation=tree.incarnation,
        checkpoint=row.checkpoint if came_from else "",
        started_at=now,
        resumed_at=now if came_from and answered else None,
    )


def lost(
    sessions: Sessions,
    row: SessionRow,
    saved: CheckpointInfo,
    ended: Failure | None,
) -> SessionRow:
    """Bring a session that ended back to where it came from, or to its save point.

    Its user is asked if they have seen more since, unless the administrator wants
    sessions that the cluster has ended to come back by themselves.
    """
    now = sessions.clock.now()
    failure = failure_of(Reason.ENDED_AFTER_RETURN)
    order: dict[str, Any] = {}
    if saved.incarnation == row.incarnation or sessions.saved_every(row.key):
        why = "" if ended is None else ended.message.removesuffix(".")
        how = why and f" ({why[:1].lower()}{why[1:]})"
        sample = sessions.runtime(row.key).sample
        seen = 0.0 if sample is None else sample.at
        at = ended.at if ended is not None else 0.0
        failure = _ended_since_saved(saved, at or seen, at or now, how)
        disrupted = ended is not None and ended.code == Reason.SESSION_DISRUPTED.value
        if disrupted and sessions.settings.return_disrupted:
            order = {"intent": Intent.RESUME, "intent_by": SERVICE}
    return sessions.apply(
        row.key,
        SessionEvent.LOST,
        failure=failure,
        checkpoints=sessions.found([saved]),
        checkpoint=saved.id,
        **retention.highest(row, [saved]),
        **order,
    )


def _ended_since_saved(
    saved: CheckpointInfo, seen: float, now: float, how: str = ""
) -> Failure:
    back = saved.gone_on.since if saved.gone_on is not None else saved.created
    since, until = moment(max(seen, back)), moment(now)
    ended = f"between {since} and {until}" if since < until else f"on {until}"
    when = moment(saved.created)
    return failure_of(Reason.ENDED_SINCE_SAVED, ended=ended, how=how, when=when)


def _columns(
    row: SessionRow, info: CheckpointInfo, seen: Collection[CheckpointInfo]
) -> dict[str, Any]:
    return {
        "account": retention.account(row, info),
        "session": info.session,
        "incarnation": info.incarnation,
        "checkpoint": info.id,
        **retention.highest(row, seen),
    }


def way_back(
    row: SessionRow, tree: Tree, observed: Observed, now: float
) -> dict[str, Any]:
    changes: dict[str, Any] = retention.highest(row, observed.saved or ())
    back = phase.goes_back_to(row, observed, tree)
    if back is None or back.id == row.checkpoint:
        return changes
    own = back.incarnation == row.incarnation
    if row.checkpoint and not (own and back.stamp > row.stamp):
        return changes
    if not own and observed.hub is not HubState.STOPPED:
        changes["resumed_at"] = now
    return changes | {"checkpoint": back.id}


def bring_back(
    sessions: Sessions,
    row: SessionRow,
    *,
    checkpoint: str = "",
    by: str = "",
    gone: bool = False,
) -> SessionRow:
    """Make the wanted checkpoint the one the session is suspended in, and resume it.

    ``gone``: the former checkpoint is missing, which nobody has set aside.
    """
    checkpoint, by = checkpoint or row.bring_back, by or row.intent_by
    rows: list[CheckpointRow] = []
    other = row.checkpoint != checkpoint
    left = sessions.journal.checkpoint(row.checkpoint)
    if other and not gone and left is not None:
        rows.append(sessions.aside(left))
    wanted = sessions.journal.checkpoint(checkpoint)
    if wanted is not None:
        rows.append(wanted.said(aside=None, gone_on=None))
    # What runs from the same one already, unknown to the Hub, is still its own.
    info = wanted.info if wanted and other else None
    return sessions.apply(
        row.key,
        SessionEvent.BROUGHT_BACK,
        by=by or SERVICE,
        checkpoints=rows,
        account=info.account if info and not row.since else row.account,
        session=info.session if info else row.session,
        incarnation=info.incarnation if info else row.incarnation,
        checkpoint=checkpoint,
        intent=Intent.RESUME,
        intent_by=by,
    )
