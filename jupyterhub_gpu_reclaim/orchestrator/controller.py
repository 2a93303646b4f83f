"""Everything that people, the Hub's process and the clock may ask of the orchestrator.

Made by ``service/app.py`` and called by the service's routes; nothing else of the
orchestrator is. It wires the parts and answers; the work itself is done by the worker,
for one session at a time, from journal, agent and Hub.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.errors import BadRequest, NotFound, Refused
from jupyterhub_gpu_reclaim.models import Phase, Placement, SessionKey
from jupyterhub_gpu_reclaim.orchestrator import checkpoints
from jupyterhub_gpu_reclaim.orchestrator.loops import Loops
from jupyterhub_gpu_reclaim.orchestrator.observer import Observer
from jupyterhub_gpu_reclaim.orchestrator.phases import Happened
from jupyterhub_gpu_reclaim.orchestrator.resume import Resumer
from jupyterhub_gpu_reclaim.orchestrator.rows import Intent, Keeping
from jupyterhub_gpu_reclaim.orchestrator.sessions import Sessions
from jupyterhub_gpu_reclaim.orchestrator.starts import Starts
from jupyterhub_gpu_reclaim.orchestrator.stops import Stops
from jupyterhub_gpu_reclaim.orchestrator.suspend import Suspender
from jupyterhub_gpu_reclaim.orchestrator.worker import Worker
from jupyterhub_gpu_reclaim.orchestrator.workqueue import WorkQueue
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.clock import Clock
    from jupyterhub_gpu_reclaim.models import (
        Event,
        SessionView,
        StartPlan,
        StopPlan,
        Verdict,
    )
    from jupyterhub_gpu_reclaim.orchestrator.counters import MetricsSnapshot
    from jupyterhub_gpu_reclaim.orchestrator.journal import Journal
    from jupyterhub_gpu_reclaim.orchestrator.ports import Agent, Decide, Hub, Window
    from jupyterhub_gpu_reclaim.orchestrator.rows import (
        AuditRow,
        CheckpointRow,
        SessionRow,
    )
    from jupyterhub_gpu_reclaim.orchestrator.settings import Settings

_LIVE = {Phase.RUNNING, Phase.WARNED}


def new_checkpoint_id() -> str:
    """A name that no checkpoint has had before."""
    return f"ckpt-{uuid.uuid4().hex}"


class Controller:
    """The orchestrator's front.

    All calls but ``start`` and ``stop`` are quick, except ``plan_start``, ``plan_stop``
    and ``release``, which may wait for the agent (``Settings.settle_limit``).

    Args:
        journal: opened; closed by whoever opened it.
        agent: the hand on the node.
        hub: the Hub's REST API.
        decide: the policy.
        window: makes a window for the samples of one incarnation.
        clock: time and waiting.
        settings: the limits.
        new_id: names for checkpoints.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        agent: Agent,
        hub: Hub,
        decide: Decide,
        window: Callable[[], Window],
        clock: Clock,
        settings: Settings,
        new_id: Callable[[], str] = new_checkpoint_id,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._sessions = sessions = Sessions(journal, clock)
        suspender = Suspender(sessions, agent, hub, settings, new_id)
        resumer = Resumer(sessions, agent, hub, settings)
        observer = Observer(sessions, agent, hub)
        self._worker = Worker(
            sessions=sessions,
            agent=agent,
            observer=observer,
            suspender=suspender,
            resumer=resumer,
            decide=decide,
            settings=settings,
        )
        self._queue = WorkQueue(
            self._worker.work, clock=clock, workers=settings.workers
        )
        self._starts = Starts(
            sessions=sessions,
            agent=agent,
            suspender=suspender,
            resumer=resumer,
            look=self._queue.add,
            settings=settings,
        )
        self._stops = Stops(
            sessions=sessions,
            agent=agent,
            starts=self._starts,
            resumer=resumer,
            look=self._queue.add,
            settings=settings,
        )
        self._loops = Loops(
            sessions=sessions,
            agent=agent,
            observer=observer,
            worker=self._worker,
            queue=self._queue,
            window=window,
            settings=settings,
        )

    async def start(self) -> None:
        """Begin to sample, to compare and to work; returns at once."""
        self._loops.start()

    async def stop(self) -> None:
        """End everything at once; what is under way at the agent goes on there."""
        await self._loops.stop()
        await self._queue.stop()
        self._sessions.close()

    # --- people and programs
    def sessions(self) -> list[SessionView]:
        """All sessions that run, are saved, or have something put aside."""
        return self._sessions.views()

    def session(self, key: SessionKey) -> SessionView:
        """One session.

        Raises:
            NotFound: nobody has heard of it.
        """
        return self._sessions.view(key)

    def why(self, key: SessionKey) -> list[Verdict]:
        """Every reason for or against a suspend, the deciding one first.

        Raises:
            NotFound: nobody has heard of it.
        """
        row = self._known(key)
        if row.phase in _LIVE:
            self._worker.judge(row)
        return self._sessions.verdicts(key)

    def changes(self) -> AsyncIterator[SessionView]:
        """Every change from now on; it ends for a reader that is too slow."""
        return self._sessions.changes()

    async def suspend(self, key: SessionKey, by: str) -> SessionView:
        """Save a running session as soon as can be; the policy is not asked.

        Already under way is fine.

        Raises:
            NotFound: nobody has heard of it.
            Refused: ``wrong_phase``: it does not run.
        """
        row = self._known(key)
        if row.phase in _LIVE:
            self._wish(row, Intent.SUSPEND, by)
        elif row.phase not in {Phase.SUSPENDING, Phase.RELEASING}:
            raise _wrong(row, Happened.SUSPEND)
        return self._sessions.view(key)

    async def resume(self, key: SessionKey, by: str) -> SessionView:
        """Bring a saved session back; a suspend under way is called off.

        Raises:
            NotFound: nobody has heard of it.
            Refused: ``wrong_phase``: nothing of it is saved.
        """
        row = self._known(key)
        if row.phase in {Phase.SUSPENDED, Phase.RELEASING, Phase.SUSPENDING}:
            self._wish(row, Intent.RESUME, by)
            if row.phase is Phase.SUSPENDING:
                await self._agent.cancel(row.incarnation)
        elif row.phase is Phase.STOPPED:
            raise _wrong(row, Happened.RESTORE)
        return self._sessions.view(key)

    async def keep(self, key: SessionKey, seconds: float, by: str) -> SessionView:
        """Leave a session alone for that long; 0 takes that back.

        A warning is taken back, and so is a suspend that nobody asked for by hand.

        Raises:
            NotFound: nobody has heard of it.
            BadRequest: negative, or longer than ``Settings.keep_limit``.
        """
        row = self._known(key)
        if not 0 <= seconds <= self._settings.keep_limit:
            limit = self._settings.keep_limit
            what = f"seconds must be between 0 and {limit:.0f}."
            raise BadRequest(Reason.INVALID, what=what)
        until = self._sessions.clock.now() + seconds if seconds else None
        self._sessions.update(
            key,
            self._sessions.audit_line(key, by, "keep", f"{seconds:.0f} s"),
            kept_until=until,
            kept_by=by if seconds else "",
        )
        if row.phase is Phase.SUSPENDING and seconds:
            await self._agent.cancel(row.incarnation)
        if row.phase is Phase.WARNED and seconds:
            self._sessions.apply(key, Happened.STAYS, by=by, failure=row.failure)
        self._queue.add(key)
        return self._sessions.view(key)

    async def opt_out(self, key: SessionKey, out: bool, by: str) -> SessionView:
        """Never suspend this session by policy, or do again; the button still works.

        Raises:
            NotFound: nobody has heard of it.
        """
        self._known(key)
        line = self._sessions.audit_line(key, by, "opt out" if out else "opt in")
        self._sessions.update(key, line, opted_out_by=by if out else "")
        self._queue.add(key)
        return self._sessions.view(key)

    async def start_fresh(self, key: SessionKey, by: str) -> SessionView:
        """Put what is saved aside for ``Settings.set_aside``; the next start is cold.

        It does not start anything: the person goes on to the Hub's spawn page.

        Raises:
            NotFound: nobody has heard of it.
            Refused: ``wrong_phase``: it is not suspended.
        """
        seconds = self._settings.set_aside
        row = self._known(key)
        self._sessions.apply(
            key,
            Happened.PUT_ASIDE,
            by=by,
            checkpoints=checkpoints.kept(
                self._sessions, row.checkpoint, Keeping.ASIDE, seconds
            ),
            checkpoint="",
            intent=Intent.NONE,
        )
        return self._sessions.view(key)

    async def discard(
        self, key: SessionKey, by: str, checkpoint: str | None = None
    ) -> SessionView:
        """Delete what is saved of a session: the next start is cold.

        Args:
            key: the session.
            by: who asks for it.
            checkpoint: one that was put aside; None: what it is suspended in, or, if
                it is not suspended, all that were put aside.

        Raises:
            NotFound: no such session or checkpoint.
            Refused: ``wrong_phase``: the checkpoint is in use.
        """
        row = self._known(key)
        kept = self._sessions.journal.checkpoints(key)
        if row.phase is Phase.SUSPENDED and checkpoint in {None, row.checkpoint}:
            self._sessions.apply(
                key,
                Happened.DISCARDED,
                by=by,
                checkpoints=self._doomed(row.checkpoint),
                checkpoint="",
                intent=Intent.NONE,
            )
        else:
            wanted = [
                c for c in kept if c.keeping is Keeping.ASIDE or c.id == checkpoint
            ]
            wanted = [c for c in wanted if checkpoint in {None, c.id}]
            if not wanted:
                raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint or "")
            if any(c.keeping is not Keeping.ASIDE for c in wanted):
                raise _wrong(row, Happened.DISCARDED)
            for each in wanted:
                self._sessions.journal.keep(self._doomed(each.id))
            line = self._sessions.audit_line(key, by, "discard", checkpoint or "")
            self._sessions.update(key, line)
        await checkpoints.collect(self._sessions, self._agent)
        return self._sessions.view(key)

    def audit(self, key: SessionKey, limit: int = 100) -> list[AuditRow]:
        """Who did what to a session, the newest first."""
        return self._sessions.journal.audit(key, limit)

    def audit_all(self, limit: int = 100) -> list[AuditRow]:
        """Who did what to any session, the newest first."""
        return self._sessions.journal.audit(None, limit)

    def metrics_snapshot(self) -> MetricsSnapshot:
        """What ``/metrics`` shows."""
        return self._loops.metrics_snapshot()

    # --- the spawner in the Hub's process
    async def plan_start(self, placement: Placement) -> StartPlan:
        """How to start a session; ``placement.incarnation`` is the new one.

        Never ``cold`` while something is saved. A capture under way is called off
        (answer ``adopt``) or, once committed, finished (answer ``restore``). What
        cannot be answered is ``refuse``, with its reason; nothing is raised.
        Idempotent for the same incarnation.
        """
        return await self._starts.plan(placement)

    async def placed(self, placement: Placement) -> None:
        """An init holds the place of a restore, or a cold session runs; idempotent.

        Raises:
            Refused: ``wrong_phase``: a restore that is not (any more) in hand.
        """
        self._starts.placed(placement)

    def progress(self, key: SessionKey, after: int = 0) -> AsyncIterator[Event]:
        """Events of the restore in hand from number ``after`` on, until its end."""
        return self._starts.progress(key, after)

    async def cancelled(self, placement: Placement) -> None:
        """A start was called off: end what was placed, keep what is saved."""
        await self._starts.cancelled(placement)

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """``release`` if that incarnation is saved (now), else ``stop``.

        A capture under way is called off or finished first. Idempotent.

        Raises:
            Refused: ``operation_in_flight``: it can be neither; end nothing now.
        """
        return await self._stops.plan(placement)

    async def release(self, placement: Placement) -> None:
        """End the saved tree; returns when it is dead. Idempotent.

        Raises:
            Refused: ``not_captured``: that incarnation is not saved.
            Unreachable: the agent does not answer; it will be done later.
        """
        await self._stops.release(placement)

    async def stopped(self, placement: Placement) -> None:
        """A real stop has happened. What is suspended stays suspended (T9)."""
        self._stops.stopped(placement)

    async def forget(self, key: SessionKey) -> None:
        """The server was deleted for ever: delete all that is saved. Idempotent."""
        await self._stops.forget(key)

    # --- helpers
    def _known(self, key: SessionKey) -> SessionRow:
        row = self._sessions.journal.session(key)
        if row is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
        return row

    def _wish(self, row: SessionRow, intent: Intent, by: str) -> None:
        """Write down what somebody wants; the worker takes it up."""
        line = self._sessions.audit_line(row.key, by, f"ask to {intent.value}")
        self._sessions.update(row.key, line, intent=intent, intent_by=by)
        self._queue.add(row.key)

    def _doomed(self, checkpoint: str) -> list[CheckpointRow]:
        return checkpoints.kept(self._sessions, checkpoint, Keeping.DOOMED, seconds=0)


def _wrong(row: SessionRow, happened: Happened) -> Refused:
    return Refused(Reason.WRONG_PHASE, phase=row.phase.value, action=happened.value)
