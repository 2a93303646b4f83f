"""Asks the administrator's own probe about sessions that it alone may still spare.

Nothing waits for it but the suspend of the very session. A session is asked about once
at a time, and again while it stays idle: a probe that hangs keeps its own session.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.policy import probe
from jupyterhub_gpu_reclaim.policy.probe import Probed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

    #: Runs the probe; what it raises is why it has no answer.
    Ask = Callable[[SessionKey], Awaitable[str]]

_log = logging.getLogger(__name__)

#: Seconds after which a session that stays idle is asked about again.
AGAIN = 30.0


class Probing:
    def __init__(self, sessions: Sessions, ask: Ask | None) -> None:
        self._sessions = sessions
        self._ask = ask
        self._asking: dict[SessionKey, asyncio.Task[None]] = {}

    def want(self, row: SessionRow) -> None:
        known = self._sessions.runtime(row.key).probed_of(row.incarnation)
        age = self._sessions.clock.now() - known.at if known is not None else AGAIN
        if self._ask is not None and age >= AGAIN:
            self._begin(row)

    async def ask_now(self, row: SessionRow) -> None:
        if self._ask is not None:
            await asyncio.shield(self._begin(row))

    def _begin(self, row: SessionRow) -> asyncio.Task[None]:
        task = self._asking.get(row.key)
        if task is None:
            task = self._asking[row.key] = asyncio.create_task(self._ask_about(row))
            task.add_done_callback(lambda _: self._asking.pop(row.key))
        return task

    async def _ask_about(self, row: SessionRow) -> None:
        now = self._sessions.clock.now()
        try:
            answer = probe.read(await self._ask(row.key), now) if self._ask else None
        except Exception as error:  # noqa: BLE001 - the administrator's, whatever it is
            answer = Probed(at=now, trouble=str(error) or type(error).__name__)
        if answer is not None and answer.trouble:
            _log.warning("%s: the probe is silent: %s", row.key, answer.trouble)
        runtime = self._sessions.runtime(row.key)
        runtime.probed = None if answer is None else (row.incarnation, answer)
