"""Makes the view of a session for pages and API, from its row and runtime state.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from jupyterhub_gpu_reclaim.common.models import (
    KeptState,
    Phase,
    Resumed,
    SessionFacts,
    SessionView,
)
from jupyterhub_gpu_reclaim.controlplane.model import lineage
from jupyterhub_gpu_reclaim.controlplane.model.phases import is_needless
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        SessionPolicy,
        Suspension,
    )
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.runtime import Runtime
    from jupyterhub_gpu_reclaim.controlplane.sessions.streams import OperationEvents


def view_of(
    row: SessionRow,
    kept: list[CheckpointRow],
    runtime: Runtime,
    policy: SessionPolicy | None,
    *,
    suspension: Suspension | None = None,
    gpus_held: int = 0,
) -> SessionView:
    kept = [each for each in kept if not lineage.is_hidden(row, each)]
    ended = row.phase.rests
    operation = runtime.operation
    return SessionView(
        key=row.key,
        phase=row.phase,
        since=row.since,
        incarnation=row.incarnation,
        generation=row.generation,
        checkpoint=row.checkpoint,
        verdict=runtime.decisions[0] if runtime.decisions else None,
        usage=runtime.usage,
        failure=row.failure,
        kept_until=row.kept_until,
        suspends_at=runtime.suspends_at,
        gpus=[] if ended else runtime.cards(row.incarnation),
        steps=operation.steps() if operation is not None else [],
        last_suspend=_newest_needed(kept),
        kept=kept_states(kept, row),
        facts=msgspec.structs.replace(
            _facts(row, runtime, policy),
            suspension=UNSET if suspension is None else suspension,
            gpus_held=gpus_held,
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


def _newest_needed(kept: list[CheckpointRow]) -> CheckpointInfo | None:
    mine = [c.info for c in kept if c.keeping in {Keeping.CURRENT, Keeping.SUPERSEDED}]
    return mine[-1] if mine else None


def _facts(
    row: SessionRow, runtime: Runtime, policy: SessionPolicy | None
) -> SessionFacts:
    waiting, awake = runtime.waiting, row.phase is Phase.RUNNING
    return SessionFacts(
        started_at=row.started_at,
        resumed_at=row.resumed_at,
        kept_by=row.kept_by,
        opted_out_by=row.opted_out_by,
        backoff_until=row.backoff_until,
        failures=row.failures,
        intent=row.intent.value,
        node=row.node,
        resumed=_last_return(row, runtime.operation),
        wanted=runtime.wanted or UNSET,
        place=UNSET if waiting is None else waiting.place,
        waiting_since=UNSET if waiting is None else waiting.since,
        terms=UNSET if policy is None else policy,
        nap=runtime.nap_of(row.incarnation) or UNSET,
        waking_until=runtime.waking_until or UNSET,
        nap_verdict=(awake and runtime.nap_decision) or UNSET,
        nap_failure=runtime.nap_failure_of(row.incarnation) or UNSET,
        wake_failed=runtime.wake_failed(row.incarnation) or UNSET,
    )


def _last_return(
    row: SessionRow, operation: OperationEvents | None
) -> Resumed | UnsetType:
    if operation is None or operation.kind != "resume" or not operation.succeeded:
        return UNSET
    if row.phase is Phase.RESUMING or row.resumed_at is None:
        return UNSET  # it answers, which is not yet noted
    steps, tree = operation.steps(), operation.tree
    return Resumed(
        at=row.resumed_at,
        seconds=sum(step.seconds for step in steps),
        bytes=max((step.bytes for step in steps), default=0),
        as_of=tree.as_of if tree else 0.0,
        newer=tree.newer if tree else [],
    )
