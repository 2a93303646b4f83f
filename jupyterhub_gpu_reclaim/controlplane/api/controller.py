"""The control plane's front: wires its parts and answers people, spawner and clock.

The service's routes go through it; ``service/app.py`` builds it, next to the journal
and the per-session policy. It does no work on a session itself: that is done by a
worker (``loop/worker.py``), one for a session at a time, from journal, agent and Hub.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane.api.nodes import NodeApi
from jupyterhub_gpu_reclaim.controlplane.api.questions import Questions
from jupyterhub_gpu_reclaim.controlplane.api.starts import (
    StartPlanner,
)
from jupyterhub_gpu_reclaim.controlplane.api.stops import StopPlanner
from jupyterhub_gpu_reclaim.controlplane.api.users import UserApi
from jupyterhub_gpu_reclaim.controlplane.checkpoints.deletions import Deletions
from jupyterhub_gpu_reclaim.controlplane.decide.draining import Draining
from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import GpuQueue
from jupyterhub_gpu_reclaim.controlplane.decide.jobs import JobWakes
from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge
from jupyterhub_gpu_reclaim.controlplane.decide.preemption import Preemption
from jupyterhub_gpu_reclaim.controlplane.decide.probing import Probing
from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
from jupyterhub_gpu_reclaim.controlplane.decide.saving import Saving
from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
from jupyterhub_gpu_reclaim.controlplane.decide.turns import Turns
from jupyterhub_gpu_reclaim.controlplane.decide.warning import Warnings
from jupyterhub_gpu_reclaim.controlplane.flows.nap import Napper
from jupyterhub_gpu_reclaim.controlplane.flows.resume import Resumer
from jupyterhub_gpu_reclaim.controlplane.flows.save_point import Saver
from jupyterhub_gpu_reclaim.controlplane.flows.suspend import Suspender
from jupyterhub_gpu_reclaim.controlplane.flows.taking import Taker
from jupyterhub_gpu_reclaim.controlplane.loop.observer import Observer
from jupyterhub_gpu_reclaim.controlplane.loop.scheduler import ControlLoops
from jupyterhub_gpu_reclaim.controlplane.loop.wakes import WakeFollower
from jupyterhub_gpu_reclaim.controlplane.loop.worker import Worker
from jupyterhub_gpu_reclaim.controlplane.loop.workqueue import WorkQueue
from jupyterhub_gpu_reclaim.controlplane.sessions import totals
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.common.models import (
        Event,
        Finding,
        Placement,
        SessionKey,
        SessionPolicy,
        StartPlan,
        StopPlan,
        Waiting,
    )
    from jupyterhub_gpu_reclaim.controlplane.decide.preemption import Choose
    from jupyterhub_gpu_reclaim.controlplane.decide.probing import Ask
    from jupyterhub_gpu_reclaim.controlplane.decide.room import CrowdedCard
    from jupyterhub_gpu_reclaim.controlplane.decide.snapshot import Decide, DecideNap
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.model.accounting import (
        GpuCount,
        MetricsSnapshot,
    )
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent, Hub
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.totals import StoreUse
    from jupyterhub_gpu_reclaim.sampling.window import Window


def new_checkpoint_id() -> str:
    """Make an id that no other checkpoint has."""
    return f"ckpt-{uuid.uuid4().hex}"


class Controller:
    """The control plane's front.

    All calls but ``start`` and ``stop`` are quick, except ``plan_start``, ``plan_stop``
    and ``release``, which may wait for the agent (``Settings.settle_limit``).

    Args:
        journal: opened, and not closed here.
        agent: carries out orders on the nodes.
        hub: the Hub's REST API.
        decide: the policy.
        window: makes a window for the samples of one incarnation.
        clock: time and waiting.
        settings: the limits.
        new_id: makes ids for checkpoints.
        choose: selects sessions to preempt for the GPU queue; None: no preemption.
        naps: the policy of naps; None: by order only.
        policies: the per-session policy; None: there are no rules.
        folder: where the spawner leaves orders to delete; None: nowhere.
        probe: asks the administrator's own probe; None: there is none.
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
        choose: Choose | None = None,
        naps: DecideNap | None = None,
        policies: Callable[[SessionKey], SessionPolicy] | None = None,
        folder: Path | None = None,
        probe: Ask | None = None,
    ) -> None:
        sessions = Sessions(journal, clock, settings, policies)
        self._deletions = deletions = Deletions(sessions, agent, folder)
        together = Together(sessions, decide)
        jobs = JobWakes(sessions, settings.wake_for_jobs)
        suspender = Suspender(
            sessions, agent, hub, settings, new_id, together=together, jobs=jobs
        )
        line = GpuQueue(sessions, agent, settings.gpu_wait)
        napper = Napper(sessions, agent, settings)
        saver = Saver(sessions, agent, settings, new_id)
        saving = Saving(sessions, settings)
        self._observer = observer = Observer(sessions, agent, hub, deletions)
        sampler = SessionSampler(sessions, agent, window)
        turns = Turns(sessions, settings.captures)
        draining = Draining(sessions, turns)
        judge = Judge(
            sessions,
            decide,
            draining,
            naps,
            together=together,
            probing=Probing(sessions, probe),
        )
        resumer = Resumer(sessions, agent, hub, settings, line)
        warnings = Warnings(
            sessions, sampler, judge, draining, settings.warn_for, together=together
        )
        taker = Taker(
            sessions=sessions,
            agent=agent,
            suspender=suspender,
            resumer=resumer,
            napper=napper,
            settings=settings,
        )
        self._room = room = RoomMaker(sessions, line, agent, judge)
        worker = Worker(
            sessions=sessions,
            agent=agent,
            observer=observer,
            deletions=deletions,
            judge=judge,
            warnings=warnings,
            taker=taker,
            suspender=suspender,
            resumer=resumer,
            napper=napper,
            saver=saver,
            saving=saving,
            room=room,
            draining=draining,
            turns=turns,
            together=together,
            settings=settings,
        )
        queue = WorkQueue(worker.work, clock=clock, workers=settings.workers)
        self._sessions, self._queue = sessions, queue
        together.look = jobs.look = queue.add
        #: calls about sessions
        self.users = UserApi(
            sessions=sessions,
            agent=agent,
            deletions=deletions,
            judge=judge,
            queue=queue,
            settings=settings,
        )
        #: calls about nodes
        self.nodes = NodeApi(sessions, queue)
        questions = Questions(
            sessions=sessions,
            agent=agent,
            observer=observer,
            deletions=deletions,
            worker=worker,
            look=queue.add,
            settings=settings,
        )
        self._starts = StartPlanner(
            sessions=sessions,
            agent=agent,
            deletions=deletions,
            questions=questions,
            resumer=resumer,
            together=together,
            look=queue.add,
            settings=settings,
        )
        self._stops = StopPlanner(
            sessions=sessions,
            agent=agent,
            deletions=deletions,
            resumer=resumer,
            questions=questions,
            look=queue.add,
            settings=settings,
        )
        self._line = line
        wakes = WakeFollower(sessions, agent, room, queue.add, settings)
        napper.naps, room.look = wakes.refresh, queue.add
        self._loops = ControlLoops(
            sessions=sessions,
            agent=agent,
            observer=observer,
            deletions=deletions,
            sampler=sampler,
            judge=judge,
            saving=saving,
            warnings=warnings,
            queue=queue,
            preemption=Preemption(sessions, choose, together) if choose else None,
            line=line,
            room=room,
            wakes=wakes,
            jobs=jobs,
            taker=taker,
            settings=settings,
        )

    async def start(self) -> None:
        """Start to sample, to compare and to work; returns at once."""
        self._loops.start()

    async def stop(self) -> None:
        """Stop everything at once; operations under way continue at the agent."""
        await self._loops.stop()
        await self._queue.stop()
        self._sessions.close()

    def metrics_snapshot(self) -> MetricsSnapshot:
        """The numbers that ``/metrics`` shows."""
        return self._loops.metrics_snapshot()

    # --- many sessions at once
    def waiting(self) -> list[Waiting]:
        """The GPU queue, in order."""
        return self._line.refresh()

    def crowded(self) -> dict[str, CrowdedCard]:
        """The cards that need fewer seats, by their ids."""
        return self._room.crowded()

    def gpus(self) -> list[GpuCount]:
        """The GPUs by node, model and state; see ``sessions.totals``."""
        return totals.gpus(self._sessions)

    def gpu_seconds(self) -> float:
        """GPUs times seconds that suspended sessions have left to others."""
        return totals.gpu_seconds(self._sessions)

    def store_use(self) -> list[StoreUse]:
        """The size of each user's checkpoints in the store, the largest first."""
        return totals.store_use(self._sessions)

    def culled_inside(self, idle_after: float) -> list[str]:
        """Name servers that end idle kernels, or themselves, before they are saved."""
        times = {
            key: runtime.usage.culls_after
            for key, runtime in self._sessions.runtimes.items()
            if runtime.usage is not None and runtime.usage.culls_after is not None
        }
        early = sorted(key for key, after in times.items() if after <= idle_after)
        if not early:
            return []
        first, seconds = early[0], times[early[0]]
        more = f" and {len(early) - 1} more" if early[1:] else ""
        warning = (
            f"The server of {first}{more} ends idle kernels, or itself, after"
            f" {seconds:g} s, by its own settings, before it is suspended (after"
            f" {idle_after:g} s), and nothing is saved: docs/how-to/cullers.md."
        )
        return [warning]

    def lately_culled(self) -> list[str]:
        """Name the Hub's cullers that lately ended sessions unsaved, in sentences."""
        return self._stops.lately_culled()

    def silent_parts(self) -> list[str]:
        """The parts that did not answer the last time (agent, store, Hub), by name."""
        return self._observer.silent_parts()

    def note_silent(self, nodes: Mapping[str, Finding]) -> None:
        """Let sessions and operations on a silent node say so.

        Args:
            nodes: why each is silent, by name.
        """
        self._sessions.note_silent(nodes)

    # --- the spawner in the Hub's process
    async def plan_start(self, placement: Placement) -> StartPlan:
        """Plan how to start a session; ``placement.incarnation`` is the new one.

        Never ``cold`` while a checkpoint is known. A capture under way is cancelled
        (answer ``adopt``) or, once committed, finished (answer ``restore``). If no plan
        can be made, the answer is ``refuse`` with its reason; nothing is raised.
        Idempotent for the same incarnation.
        """
        return await self._starts.plan(placement)

    async def placed(self, placement: Placement) -> None:
        """Note that an init holds a place, or that a cold session runs; idempotent.

        Raises:
            Refused: ``wrong_phase``: that restore is not, or no longer, under way.
        """
        self._starts.placed(placement)

    def progress(self, key: SessionKey, after: int = 0) -> AsyncIterator[Event]:
        """Events of the restore under way from number ``after`` on, until its end."""
        return self._starts.progress(key, after)

    async def cancelled(self, placement: Placement) -> None:
        """Cancel a start: end what was placed, keep the checkpoint."""
        await self._starts.cancelled(placement)

    async def login_revoked(self, placement: Placement) -> None:
        """Note that a running server's login was revoked: so is the key of its tabs."""
        self._starts.login_revoked(placement)

    async def plan_stop(self, placement: Placement) -> StopPlan:
        """Answer ``release`` if that incarnation is (now) suspended, else ``stop``.

        A capture under way is cancelled or finished first. Idempotent.

        Raises:
            Refused: ``operation_in_flight``: neither was possible; end nothing now.
            StoreError: it has ended, and what may come back is not known.
            Unreachable: the agent does not answer, and whether the session has ended is
                not known here.
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
        """Note a real stop. A suspended session stays suspended (trap T9)."""
        self._stops.stopped(placement)

    async def forget(self, deletion: Deletion) -> None:
        """Delete everything that is left of a deleted server. Idempotent.

        The order is journalled before anything is done, and repeated until nothing is
        left, also if a part does not answer now.
        """
        await self._stops.forget(deletion)
