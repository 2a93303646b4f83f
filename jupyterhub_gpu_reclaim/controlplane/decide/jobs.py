"""Has suspended sessions resumed for their scheduled jobs, where that is wanted.

When a suspend begins, the moment is noted at which its next job is due, since nobody
can ask a suspended server. A note is carried out once: if that return fails, the job
runs when its user comes back, as it would without us.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(eq=False)
class JobWakes:
    sessions: Sessions

    def told(self, row: SessionRow) -> str:
        usage = self.sessions.runtime(row.key).usage
        return job_told(usage, wakes=self._is_woken(row))

    def note(self, row: SessionRow) -> None:
        usage, subject = self.sessions.runtime(row.key).usage, row.key.path
        due = usage.job_due if usage is not None else None
        if due and self._is_woken(row):
            self.sessions.journal.note(NoteKind.JOB, subject, due)
        else:
            self.sessions.journal.forget_notes(NoteKind.JOB, subject)

    def refresh(self) -> None:
        now, journal = self.sessions.clock.now(), self.sessions.journal
        for path, due in journal.all_noted(NoteKind.JOB).items():
            row = self.sessions.row(SessionKey.of_path(*map(unquote, path.split("/"))))
            if row.phase in _ON_THE_WAY or (
                row.phase is Phase.SUSPENDED and now < due - AHEAD
            ):
                continue
            journal.forget_notes(NoteKind.JOB, path)
            if row.phase is Phase.SUSPENDED:
                self.sessions.order_return(row, "A scheduled job is due.")

    def _is_woken(self, row: SessionRow) -> bool:
        return (
            mode_for_jobs(
                self.sessions.policy_of(row), self.sessions.settings.wake_for_jobs
            )
            == "wake"
        )
