"""The control plane's front: wires its parts and answers people, spawner and clock.

The service's routes go through it; ``service/app.py`` builds it, next to the journal
and the per-session policy. It does no work on a session itself: that is done by a
worker (``worker.py``), one for a session at a time, from journal, agent and Hub.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane import metrics
from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import GpuQueue, Preemption
from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge, Probing, Warnings
from jupyterhub_gpu_reclaim.controlplane.decide.room import RoomMaker
from jupyterhub_gpu_reclaim.controlplane.decide.sampler import SessionSampler
from jupyterhub_gpu_reclaim.controlplane.decide.together import Together
from jupyterhub_gpu_reclaim.controlplane.decide.turns import Turns
from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
from jupyterhub_gpu_reclaim.controlplane.loops import ControlLoops
from jupyterhub_gpu_reclaim.controlplane.naps import Napper, WakeFollower
from jupyterhub_gpu_reclaim.controlplane.observer import Observer
from jupyterhub_gpu_reclaim.controlplane.people import UserApi
from jupyterhub_gpu_reclaim.controlplane.plans import Planner
from jupyterhub_gpu_reclaim.controlplane.resume import Resumer
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
    from jupyterhub_gpu_reclaim.controlplane.decide.gpu_queue import Choose
    from jupyterhub_gpu_reclaim.controlplane.decide.judge import Ask
    from jupyterhub_gpu_reclaim.controlplane.decide.sampler import Decide
    from jupyterhub_gpu_reclaim.controlplane.interfaces import Agent, Hub
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.settings import Settings
    from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
    from jupyterhub_gpu_reclaim.sampling.window import Window


def new_checkpoint_id() -> str:
    return f"ckpt-{uuid.uuid4().hex}"


class Controller:
    """The control plane's front.

    All calls but ``start`` and ``stop`` are quick, except ``plan_start``, ``plan_stop``
    and ``release``, which may wait for the agent (``Settings.settle_limit``).

    The journal is not closed here. Without ``choose`` nothing is preempted, without
    ``naps`` sessions nap by order only, without ``policies`` there are no rules, and
    without a ``folder`` the spawner leaves no orders to delete.
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
        naps: NapPolicy | None = None,
        policies: Callable[[SessionKey], SessionPolicy] | None = None,
        folder: Path | None = None,
        probe: Ask | None = None,
    ) -> None:
        sessions = Sessions(journal, clock, settings, policies)
        sessions.agent, sessions.hub, sessions.new_id = agent, hub, new_id
        self._deletions = deletions = Deletions(sessions, folder)
        together = Together(sessions, decide)
        suspender = Suspender(sessions, together)
        line = GpuQueue(sessions)
        observer = Observer(sessions, deletions)
        sampler = SessionSampler(sessions, window)
        probing = Probing(sessions, probe)
        judge = Judge(sessions, decide, naps, together, probing)
        resumer = Resumer(sessions, line)
        warnings = Warnings(sessions, sampler, judge, together)
        room = RoomMaker(sessions, line, judge)
        wakes = WakeFollower(sessions, room)
        napper = Napper(sessions, wakes)
        taker = Taker(sessions, suspender, resumer, napper)
        worker = Worker(
            sessions=sessions,
            observer=observer,
            deletions=deletions,
            judge=judge,
            warnings=warnings,
            taker=taker,
            suspender=suspender,
            resumer=resumer,
            napper=napper,
            room=room,
            turns=Turns(sessions),
            together=together,
        )
        queue = WorkQueue(worker.work, settings.workers)
        self._sessions, self._queue = sessions, queue
        sessions.look = queue.add
        #: calls about sessions
        self.users = UserApi(sessions, deletions, judge)
        #: calls about nodes
        self.nodes = sessions.drains
        planner = Planner(sessions, observer, deletions, resumer, together, worker)
        self._loops = ControlLoops(
            worker=worker,
            sampler=sampler,
            queue=queue,
            preemption=Preemption(sessions, choose, together) if choose else None,
            wakes=wakes,
        )
        self.totals = metrics.Totals(sessions)
        self.counters = sessions.counters
        self.silent_parts = observer.silent_parts
        self.note_silent = sessions.note_silent
        # many sessions at once
        self.waiting = line.refresh
        self.gpus = partial(metrics.gpus, sessions)
        self.gpu_seconds = partial(metrics.gpu_seconds, sessions)
        self.stored_bytes = partial(metrics.stored_bytes, sessions)
        self.lately_culled = planner.lately_culled
        # the spawner in the Hub's process
        self.plan_start, self.placed = planner.plan_start, planner.placed
        self.progress, self.cancelled = planner.progress, planner.cancelled
        self.login_revoked = planner.login_revoked
        self.plan_stop, self.release = planner.plan_stop, planner.release
        self.stopped, self.forget = planner.stopped, planner.forget

    async def start(self) -> None:
        self._loops.start()

    async def stop(self) -> None:
        """Stop everything at once; operations under way continue at the agent."""
        await self._loops.stop()
        await self._queue.stop()

    def culls_after(self) -> dict[SessionKey, float]:
        """Seconds after which servers end idle kernels, or themselves, if they do."""
        return {
            key: runtime.usage.culls_after
            for key, runtime in self._sessions.runtimes.items()
            if runtime.usage is not None and runtime.usage.culls_after is not None
        }
