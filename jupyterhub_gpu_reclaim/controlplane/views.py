"""Makes the view of a session for pages and API, from its row and runtime state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES, of_user
from jupyterhub_gpu_reclaim.common.models import (
    KeptState,
    Phase,
    Resumed,
    SessionFacts,
    SessionPolicy,
    SessionView,
    Suspension,
)
from jupyterhub_gpu_reclaim.controlplane import retention
from jupyterhub_gpu_reclaim.controlplane.session import Keeping, is_needless

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import AuditLine, CheckpointInfo
    from jupyterhub_gpu_reclaim.controlplane.runtime import OperationEvents, Runtime
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.policy.retention import Retention


def view_of(
    row: SessionRow,
    kept: list[CheckpointRow],
    runtime: Runtime,
    policy: SessionPolicy | None,
    *,
    suspension: Suspension | None = None,
    gpus_held: int = 0,
) -> SessionView:
    kept = [each for each in kept if not retention.is_hidden(row, each)]
    needed = {Keeping.CURRENT, Keeping.SUPERSEDED}
    saved = [each.info for each in kept if each.keeping in needed]
    operation, waiting, phase = runtime.operation, runtime.waiting, runtime.phase(row)
    awake = phase is Phase.RUNNING
    return SessionView(
        key=row.key,
        phase=phase,
        since=row.since,
        incarnation=row.incarnation,
        generation=row.stamp[1],
        checkpoint=row.checkpoint,
        verdict=runtime.decisions[0] if runtime.decisions else None,
        usage=runtime.usage,
        failure=row.failure,
        kept_until=row.kept_until,
        suspends_at=runtime.suspends_at,
        gpus=[] if row.phase.rests else runtime.cards,
        steps=operation.steps() if operation is not None else [],
        last_suspend=saved[-1] if saved else None,
        kept=kept_states(kept, row),
        facts=SessionFacts(
            opted_out_by=row.opted_out_by,
            intent=row.intent.value,
            node=row.node,
            gpus_held=gpus_held,
            suspension=suspension or UNSET,
            resumed=_last_return(row, operation) or UNSET,
            place=UNSET if waiting is None else waiting.place,
            terms=UNSET if policy in (None, SessionPolicy()) else policy,
            nap=runtime.nap or UNSET,
            waking_until=runtime.waking_until or UNSET,
            nap_verdict=(awake and runtime.nap_decision) or UNSET,
            nap_failure=runtime.nap_failure or UNSET,
            wake_failed=runtime.wake_failed or UNSET,
        ),
    )


def kept_states(rows: list[CheckpointRow], session: SessionRow) -> list[KeptState]:
    return [
        KeptState(
            id=row.id,
            generation=row.info.generation,
            created=row.info.created,
            logical_bytes=row.info.logical_bytes,
            stored_bytes=row.info.stored_bytes,
            keeping=row.keeping.value,
            name=row.name,
            save_point=bool(row.name)
            or (session.phase.live and row.is_of(session.incarnation)),
            expires=row.expires,
            deletable=is_needless(row, session),
        )
        for row in reversed(rows)
    ]


def _last_return(row: SessionRow, operation: OperationEvents | None) -> Resumed | None:
    if operation is None or operation.kind != "resume" or not operation.succeeded:
        return None
    if row.phase is Phase.RESUMING or row.resumed_at is None:
        return None  # it answers, which is not yet noted
    tree = operation.tree
    return Resumed() if tree is None else Resumed(as_of=tree.as_of, newer=tree.newer)


def cause(line: AuditLine | None) -> str:
    if line is None:
        return ""
    if line.code or line.who == OURSELVES:
        return line.message
    mine = line.who == of_user(line.key.user)
    by = "You suspended it." if mine else f"Suspended by {line.who}."
    return f"{by} {line.message}".strip()


def suspension_of(
    row: SessionRow, info: CheckpointInfo | None, retention: Retention
) -> Suspension:
    size, at = (info.logical_bytes, info.created) if info else (0, row.since)
    term, generation = info.stamp if info else (0, 0)
    taken, seconds = retention.takes_current, retention.seconds
    return Suspension(
        at=at,
        why=cause(row.cause),
        bytes=size,
        until=at + seconds if taken and seconds else None,
        for_quota=taken and bool(retention.user_bytes or retention.total_bytes),
        term=term,
        generation=generation,
    )
