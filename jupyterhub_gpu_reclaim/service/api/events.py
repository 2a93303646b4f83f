"""Changes of sessions as they happen, as server-sent events (HTML standard, 9.2).

Every stream begins with the state of all sessions that its reader may see, so after a
lost event or connection it is enough to connect again.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.service.api.base import Count, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation
from jupyterhub_gpu_reclaim.service.api.streams import Streaming, flushed, with_pauses

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionView

#: Milliseconds that a browser waits before it connects again.
_RETRY = 3000


class Events(Streaming, PersonRoute):
    path: ClassVar = "api/events"

    @operation(
        "Follow the sessions: `event: session` with a SessionView at the start and at"
        " every change",
        answer=str,
        query=(
            Query(
                "user", str, "Only that user's sessions; empty: all that you may see."
            ),
            Query("state", Count, "0: only changes, without the state at the start."),
        ),
        errors=(429,),
        media="text/event-stream",
    )
    async def get(self) -> None:
        context = self.context
        with context.streams.opened(self.person.label):
            self.set_header("Content-Type", "text/event-stream")
            self.set_header("X-Accel-Buffering", "no")  # nginx would hold it back
            timer = asyncio.get_running_loop().call_later(
                context.stream, self._left.set
            )
            try:
                await self._send_changes()
            finally:
                timer.cancel()

    async def _send_changes(self) -> None:
        whole = self.number("state", 1) > 0
        self._user = self.get_query_argument("user", "")
        context = self.context
        changes = context.control.users.changes()
        begun = False
        source = with_pauses(changes, pause=context.heartbeat, left=self._left)
        async with aclosing(source) as views:
            async for view in views:
                if view is not None:
                    self._send_session(view)
                elif begun:
                    self.write(": still here\n\n")
                else:
                    begun = True
                    self.write(f"retry: {_RETRY}\n\n")
                    if whole:
                        for each in context.control.users.sessions():
                            self._send_session(each)
                if not await flushed(self, limit=context.stalled):
                    return

    def _send_session(self, view: SessionView) -> None:
        if self._user in {"", view.key.user} and self.person.may_see(view.key):
            # codec.encode never makes a line break, so one data line is enough
            self.write(b"event: session\ndata: " + codec.encode(view) + b"\n\n")


ROUTES: tuple[type[Route], ...] = (Events,)
