"""The spawner's calls, before, during and after a start or stop.

They come by a UNIX socket of mode 0600, since an answer may carry the login of a
suspended session. The meaning of every call is in
``docs/explanation/architecture.md``.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import (
    Event,
    Placement,
    SessionKey,
    StartPlan,
    StopPlan,
)
from jupyterhub_gpu_reclaim.service.api.base import Route, SpawnerRoute
from jupyterhub_gpu_reclaim.service.api.openapi import operation
from jupyterhub_gpu_reclaim.service.api.streams import Streaming, flushed, with_pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def _call(
    name: str,
    summary: str,
    *,
    body: type = Placement,
    answer: type | None = None,
) -> type[SpawnerRoute]:
    class Call(SpawnerRoute):
        path: ClassVar = f"api/spawner/{name}"

        @operation(
            summary,
            caller="spawner",
            body=body,
            answer=answer,
            status=204 if answer is None else 200,
            errors=(404, 409),
        )
        async def post(self) -> None:
            call = getattr(self.context.control, name.replace("-", "_"))
            done = await call(self.body(body))
            if answer is None:
                self.no_content()
            else:
                self.answer(done)

    return Call


class Progress(Streaming, SpawnerRoute):
    path: ClassVar = "api/spawner/progress/{user}/{server}"
    _begun = False

    @operation(
        "Steps of the start in hand, one Event a line, until it ends",
        caller="spawner",
        answer=Event,
        media="application/x-ndjson",
        errors=(404, 409),
    )
    async def get(self, user: str, server: str) -> None:
        key = SessionKey.of_path(user, server)
        events = self.context.control.progress(key)
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            await self._send_steps(events)
        except ReclaimError as error:
            if not self._begun:
                raise
            self.write(codec.encode(Event(failure=codec.failure_of(error))) + b"\n")

    async def _send_steps(self, events: AsyncIterator[Event]) -> None:
        pause, stalled = self.context.heartbeat, self.context.stalled
        source = with_pauses(events, pause=pause, left=self._left)
        async with aclosing(source) as paused:
            await anext(paused)  # says that the source is being read
            async for event in paused:
                # an empty line now and then shows whether the reader is still there
                if event is None:
                    self.write(b"\n")
                else:
                    self.write(codec.encode(event) + b"\n")
                self._begun = True
                if not await flushed(self, limit=stalled):
                    return


ROUTES: tuple[type[Route], ...] = (
    _call(
        "plan-start",
        "How to start this session",
        answer=StartPlan,
    ),
    _call(
        "placed",
        "The place is ready: bring the checkpoint back there",
    ),
    Progress,
    _call(
        "cancelled",
        "The start was called off: end what was placed, keep the checkpoint",
    ),
    _call(
        "plan-stop",
        "Whether to stop the programs or to release a captured tree",
        answer=StopPlan,
    ),
    _call(
        "release",
        "End the captured tree; answered when it is dead",
    ),
    _call(
        "stopped",
        "The programs were really stopped",
    ),
    _call(
        "login-revoked",
        "The server's login was revoked; the key of its open tabs ends with it",
    ),
    _call(
        "forget",
        "The server was deleted for ever: discard its checkpoints",
        body=Deletion,
    ),
)
