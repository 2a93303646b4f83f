"""The control plane's front: wires its parts and answers people, spawner and clock.

The service's routes go through it; ``service/app.py`` builds it, next to the journal
and the per-session policy. It does no work on a session itself: that is done by a
worker (``loop/worker.py``), one for a session at a time, from journal, agent and Hub.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane import metrics
from jupyterhub_gpu_reclaim.controlplane.decide.draining import Draining, NodeApi
from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import GpuQueue
from jupyterhub_gpu_reclaim.controlplane.decide.jobs import JobWakes
from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge, Probing
from jupyterhub_gpu_reclaim.controlplane.decide.preemption import Preemption
from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
from jupyterhub_gpu_reclaim.controlplane.decide.turns import Turns
from jupyterhub_gpu_reclaim.controlplane.decide.warning import Warnings
from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
from jupyterhub_gpu_reclaim.controlplane.loops import ControlLoops
from jupyterhub_gpu_reclaim.controlplane.naps import Napper, WakeFollower
from jupyterhub_gpu_reclaim.controlplane.observer import Observer
from jupyterhub_gpu_reclaim.controlplane.operations import Operations
from jupyterhub_gpu_reclaim.controlplane.people import UserApi
from jupyterhub_gpu_reclaim.controlplane.plans import (
    Questions,
    StartPlanner,
    StopPlanner,
)
from jupyterhub_gpu_reclaim.controlplane.resume import Resumer
from jupyterhub_gpu_reclaim.controlplane.save_points import Saver
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from jupyterhub_gpu_reclaim.controlplane.suspend import Suspender
from jupyterhub_gpu_reclaim.controlplane.taking import Taker
from jupyterhub_gpu_reclaim.controlplane.worker import Worker
from jupyterhub_gpu_reclaim.controlplane.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionPolicy
    from jupyterhub_gpu_reclaim.controlplane.decide.judge import Ask
    from jupyterhub_gpu_reclaim.controlplane.decide.preemption import Choose
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import Decide, DecideNap
    from jupyterhub_gpu_reclaim.controlplane.interfaces import Agent, Hub
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.settings import Settings
    from jupyterhub_gpu_reclaim.sampling.window import Window


def new_checkpoint_id() -> str:
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
        jobs = JobWakes(sessions)
        operations = Operations(sessions, agent)
        suspender = Suspender(sessions, agent, operations, hub, new_id, together, jobs)
        line = GpuQueue(sessions, agent)
        napper = Napper(sessions, operations)
        saver = Saver(sessions, operations, new_id)
        observer = Observer(sessions, agent, hub, deletions)
        sampler = SessionSampler(sessions, agent, window)
        turns = Turns(sessions)
        draining = Draining(sessions, turns)
        probing = Probing(sessions, probe)
        judge = Judge(sessions, decide, draining, naps, together, probing)
        resumer = Resumer(sessions, operations, hub, line)
        warnings = Warnings(sessions, sampler, judge, draining, together)
        taker = Taker(sessions, agent, suspender, resumer, napper)
        room = RoomMaker(sessions, line, agent, judge)
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
            room=room,
            draining=draining,
            turns=turns,
            together=together,
        )
        queue = WorkQueue(worker.work, clock=clock, workers=settings.workers)
        self._sessions, self._queue = sessions, queue
        sessions.look = queue.add
        #: calls about sessions
        self.users = UserApi(sessions, agent, deletions, judge)
        #: calls about nodes
        self.nodes = NodeApi(sessions)
        questions = Questions(sessions, agent, observer, worker)
        self._starts = starts = StartPlanner(
            sessions, agent, deletions, questions, resumer, together
        )
        stops = StopPlanner(sessions, agent, deletions, resumer, questions)
        wakes = WakeFollower(sessions, agent, room)
        napper.naps = wakes.refresh
        self._loops = ControlLoops(
            sessions=sessions,
            agent=agent,
            observer=observer,
            deletions=deletions,
            sampler=sampler,
            judge=judge,
            saver=saver,
            warnings=warnings,
            queue=queue,
            preemption=Preemption(sessions, choose, together) if choose else None,
            line=line,
            room=room,
            wakes=wakes,
            jobs=jobs,
            taker=taker,
        )
        self.metrics_snapshot = partial(metrics.snapshot, sessions, sampler, room)
        self.silent_parts = observer.silent_parts
        self.note_silent = sessions.note_silent
        # many sessions at once
        self.waiting = line.refresh
        self.crowded = room.crowded
        self.gpus = partial(metrics.gpus, sessions)
        self.gpu_seconds = partial(metrics.gpu_seconds, sessions)
        self.store_use = partial(metrics.store_use, sessions)
        self.lately_culled = stops.lately_culled
        # the spawner in the Hub's process
        self.plan_start, self.placed = starts.plan, starts.placed
        self.progress, self.cancelled = starts.progress, starts.cancelled
        self.login_revoked = starts.login_revoked
        self.plan_stop, self.release = stops.plan, stops.release
        self.stopped, self.forget = stops.stopped, stops.forget

    async def start(self) -> None:
        self._loops.start()

    async def stop(self) -> None:
        """Stop everything at once; operations under way continue at the agent."""
        await self._loops.stop()
        await self._queue.stop()
        self._sessions.close()

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
