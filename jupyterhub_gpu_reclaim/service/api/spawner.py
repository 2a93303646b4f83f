"""The spawner's calls, before, during and after a start or stop.

They are proved with a shared secret (``common/auth/handshake.py``), because an answer
may carry the login of a suspended session. The meaning of every call is in
``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.auth.handshake import Hello
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import (
    Event,
    Placement,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.service.api.base import (
    Count,
    Route,
    SpawnerRoute,
    VouchedRoute,
)
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation
from jupyterhub_gpu_reclaim.service.api.streams import flushed, with_pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class SayHello(VouchedRoute):
    """The service's proof of itself, before the spawner sends anything."""

    path: ClassVar = "api/spawner/hello"

    @operation(
        "Which run of the service answers, proved", caller="anyone", answer=Hello
    )
    async def get(self) -> None:
        """Answer with this run of the service."""
        self.answer(Hello(run=self.context.run))


class PlanStart(SpawnerRoute):
    """The plan for a start."""

    path: ClassVar = "api/spawner/plan-start"

    @operation(
        "How to start this session",
        caller="spawner",
        body=Placement,
        answer=StartPlan,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """Answer with a ``StartPlan``."""
        self.answer(await self.context.control.plan_start(self.body(Placement)))


class Placed(SpawnerRoute):
    """The report that an init holds the session's place."""

    path: ClassVar = "api/spawner/placed"

    @operation(
        "The place is ready: bring the checkpoint back there",
        caller="spawner",
        body=Placement,
        status=202,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """Record the place; the worker orders the restore."""
        await self.context.control.placed(self.body(Placement))
        self.set_status(202)
        self.clear_header("Content-Type")
        await self.finish()


class Progress(SpawnerRoute):
    """The steps of a restore."""

    path: ClassVar = "api/spawner/progress/{user}/{server}"

    def initialize(self) -> None:
        """Note that the reader is there."""
        self._left = asyncio.Event()
        self._begun = False

    def on_connection_close(self) -> None:
        """Wake the stream, so that it ends."""
        self._left.set()

    @operation(
        "Steps of the start in hand, one Event a line, until it ends",
        caller="spawner",
        answer=Event,
        media="application/x-ndjson",
        query=(Query("after", Count, "Leave out that many steps, already seen."),),
        errors=(404, 409),
    )
    async def get(self, user: str, server: str) -> None:
        """Send the steps until the start has ended or the reader has left."""
        key = SessionKey.of_path(user, server)
        events = self.context.control.progress(key, self.number("after"))
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            await self._send_steps(events)
        except ReclaimError as error:
            if not self._begun:
                raise
            self.write_line(codec.encode(Event(failure=codec.failure_of(error))))

    async def _send_steps(self, events: AsyncIterator[Event]) -> None:
        limits = self.context.limits
        source = with_pauses(events, pause=limits.heartbeat, left=self._left)
        async with aclosing(source) as paused:
            await anext(paused)  # says that the source is being read
            async for event in paused:
                # an empty line now and then shows whether the reader is still there
                if event is None:
                    self.write(b"\n")
                else:
                    self.write_line(codec.encode(event))
                self._begun = True
                if not await flushed(self, limit=limits.stalled):
                    return


class Cancelled(SpawnerRoute):
    """The report that a start was cancelled."""

    path: ClassVar = "api/spawner/cancelled"

    @operation(
        "The start was called off: end what was placed, keep the checkpoint",
        caller="spawner",
        body=Placement,
        status=204,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """End the init that was placed."""
        await self.context.control.cancelled(self.body(Placement))
        self.no_content()


class PlanStop(SpawnerRoute):
    """The plan for a stop."""

    path: ClassVar = "api/spawner/plan-stop"

    @operation(
        "Whether to stop the programs or to release a captured tree",
        caller="spawner",
        body=Placement,
        answer=StopPlan,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """Answer with a ``StopPlan``."""
        self.answer(await self.context.control.plan_stop(self.body(Placement)))


class Release(SpawnerRoute):
    """The release of a captured tree."""

    path: ClassVar = "api/spawner/release"

    @operation(
        "End the captured tree; answered when it is dead",
        caller="spawner",
        body=Placement,
        status=204,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """End the tree; answers when it is dead."""
        await self.context.control.release(self.body(Placement))
        self.no_content()


class Stopped(SpawnerRoute):
    """The report that a server was stopped for real."""

    path: ClassVar = "api/spawner/stopped"

    @operation(
        "The programs were really stopped",
        caller="spawner",
        body=Placement,
        status=204,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """Record the stop."""
        await self.context.control.stopped(self.body(Placement))
        self.no_content()


class LoginRevoked(SpawnerRoute):
    """The report that a running server's login was revoked."""

    path: ClassVar = "api/spawner/login-revoked"

    @operation(
        "The server's login was revoked; the key of its open tabs ends with it",
        caller="spawner",
        body=Placement,
        status=204,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """Revoke the key for tabs."""
        await self.context.control.login_revoked(self.body(Placement))
        self.no_content()


class Forget(SpawnerRoute):
    """The report that a server was deleted."""

    path: ClassVar = "api/spawner/forget"

    @operation(
        "The server was deleted for ever: discard its checkpoints",
        caller="spawner",
        body=Deletion,
        status=204,
        errors=(404, 409),
    )
    async def post(self) -> None:
        """Delete what is left of the server."""
        await self.context.control.forget(self.body(Deletion))
        self.no_content()


ROUTES: tuple[type[Route], ...] = (
    SayHello,
    PlanStart,
    Placed,
    Progress,
    Cancelled,
    PlanStop,
    Release,
    Stopped,
    LoginRevoked,
    Forget,
)
