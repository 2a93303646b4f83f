"""Makes the view of a session for pages and policies, from its row and runtime state.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common.models import KeptState, Phase, SessionView
from jupyterhub_gpu_reclaim.controlplane.model.rows import HIDDEN, Keeping

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        GpuSample,
        Usage,
        Verdict,
        Waiting,
    )
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.streams import Operation
    from jupyterhub_gpu_reclaim.policy.terms import Terms


def view_of(
    row: SessionRow,
    kept: list[CheckpointRow],
    *,
    verdict: Verdict | None,
    usage: Usage | None,
    suspends_at: float | None,
    gpus: list[GpuSample],
    operation: Operation | None,
    waiting: Waiting | None,
    wanted: int,
    terms: Terms | None,
) -> SessionView:
    """One view.

    Args:
        row: what the journal says.
        kept: the session's checkpoints, oldest generation first.
        verdict: the policy's last word.
        usage: what was measured last.
        suspends_at: when a warned session is going to be suspended.
        gpus: what it was last seen to hold.
        operation: the last capture or restore.
        waiting: its place in the queue for a GPU.
        wanted: how many wait, where it was chosen to go for one of them.
        terms: what rules set for it; None: there are no rules, or it does not run.
    """
    return SessionView(
        key=row.key,
        phase=row.phase,
        since=row.since,
        incarnation=row.incarnation,
        generation=row.generation,
        checkpoint=row.checkpoint,
        verdict=verdict,
        usage=usage,
        failure=row.failure,
        kept_until=row.kept_until,
        suspends_at=suspends_at,
        gpus=[] if row.phase in {Phase.SUSPENDED, Phase.STOPPED} else gpus,
        steps=operation.steps() if operation is not None else [],
        last_suspend=_last(kept),
        saved=[
            c.info for c in kept if c.keeping is Keeping.ASIDE and c.info is not None
        ],
        kept=kept_states(kept),
        facts={
            **_facts(row),
            **_resumed(row, operation),
            **_queue(waiting, wanted),
            **_terms(terms),
        },
    )


def kept_states(rows: list[CheckpointRow]) -> list[KeptState]:
    """The session's checkpoints that can be brought back, the newest first."""
    return [
        KeptState(
            id=row.id,
            generation=row.generation,
            created=row.info.created if row.info else row.changed,
            logical_bytes=row.info.logical_bytes if row.info else 0,
            stored_bytes=row.info.stored_bytes if row.info else 0,
            keeping=row.keeping.value,
            expires=row.expires,
        )
        for row in reversed(rows)
        if row.keeping not in HIDDEN
    ]


def _last(kept: list[CheckpointRow]) -> CheckpointInfo | None:
    """The newest checkpoint that the session itself needs."""
    mine = [c.info for c in kept if c.keeping in {Keeping.CURRENT, Keeping.SUPERSEDED}]
    return mine[-1] if mine else None


def _facts(row: SessionRow) -> dict[str, Any]:
    """Further facts for guards and pages."""
    return {
        "started_at": row.started_at,
        "resumed_at": row.resumed_at,
        "kept_by": row.kept_by,
        "opted_out_by": row.opted_out_by,
        "backoff_until": row.backoff_until,
        "failures": row.failures,
        "intent": row.intent.value,
        "node": row.node,
        "gpus_held": row.gpus,
    }


def _terms(terms: Terms | None) -> dict[str, Any]:
    if terms is None:
        return {}
    values = msgspec.structs.asdict(terms)
    said = {k: v for k, v in values.items() if v is not None and v not in ("", {})}
    return {"terms": said}


def _queue(waiting: Waiting | None, wanted: int) -> dict[str, Any]:
    """Its place if it waits for a GPU; how many wait if it was selected to go."""
    facts: dict[str, Any] = {"wanted": wanted} if wanted else {}
    if waiting is not None:
        facts.update(place=waiting.place, waiting_since=waiting.since)
    return facts


def _resumed(row: SessionRow, operation: Operation | None) -> dict[str, Any]:
    """What its last return took, while this program remembers it."""
    if operation is None or operation.kind != "resume" or not operation.succeeded:
        return {}
    if row.phase is Phase.RESUMING or row.resumed_at is None:
        return {}  # it answers, which is not yet noted
    steps = operation.steps()
    return {
        "resumed": {
            "at": row.resumed_at,
            "seconds": sum(step.seconds for step in steps),
            "bytes": max((step.bytes for step in steps), default=0),
        }
    }
