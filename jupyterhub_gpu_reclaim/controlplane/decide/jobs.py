"""Has suspended sessions resumed for their scheduled jobs, where that is wanted.

When a suspend begins, the moment is noted at which its next job is due, since nobody
can ask a suspended server. A note is carried out once: if that return fails, the job
runs when its user comes back, as it would without us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.policy.idle import job_told, mode_for_jobs

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions

#: Seconds before a job is due at which its session is resumed.
AHEAD = 120.0
#: Phases in which it is not yet, or not any more, what the note is about.
_ON_THE_WAY = {Phase.SUSPENDING, Phase.RELEASING}


def told(sessions: Sessions, row: SessionRow) -> str:
    usage = sessions.runtime(row.key).usage
    return job_told(usage, wakes=_is_woken(sessions, row))


def note(sessions: Sessions, row: SessionRow) -> None:
    usage, subject = sessions.runtime(row.key).usage, row.key.path
    due = usage.job_due if usage is not None else None
    if due and _is_woken(sessions, row):
        sessions.journal.note(NoteKind.JOB, subject, due)
    else:
        sessions.journal.forget_notes(NoteKind.JOB, subject)


def refresh(sessions: Sessions) -> None:
    now, journal = sessions.clock.now(), sessions.journal
    for path, due in journal.notes(NoteKind.JOB, float).items():
        row = sessions.row(SessionKey.of_path(*map(unquote, path.split("/"))))
        if row.phase in _ON_THE_WAY or (
            row.phase is Phase.SUSPENDED and now < due - AHEAD
        ):
            continue
        journal.forget_notes(NoteKind.JOB, path)
        if row.phase is Phase.SUSPENDED:
            sessions.order_return(row, "A scheduled job is due.")


def _is_woken(sessions: Sessions, row: SessionRow) -> bool:
    return (
        mode_for_jobs(sessions.policy_of(row), sessions.settings.wake_for_jobs)
        == "wake"
    )
