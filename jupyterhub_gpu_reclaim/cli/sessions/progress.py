"""Waits until actions are done; progress comes from the service's stream of changes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import Failure, Phase, SessionKey, Value
from jupyterhub_gpu_reclaim.common.orders import Left, Nap, Wake
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.models import SessionView, Step
    from jupyterhub_gpu_reclaim.common.orders import Order

#: Seconds between two tries to read the stream again.
PAUSE = 2.0


class How(StrEnum):
    DONE = "done"
    ASKED = "asked"  #: and not waited for
    FAILED = "failed"  #: begun, and undone
    REFUSED = "refused"  #: nothing was begun
    WAITING = "waiting"  #: not done within the time limit; it goes on


class Result(Value, frozen=True, kw_only=True):
    """The outcome of an action for one session; times in seconds."""

    key: SessionKey
    how: How
    seconds: float = 0.0
    stored_bytes: int | None = None
    kept_until: float | None = None
    kept: tuple[Left, ...] = ()  #: checkpoints that are not deleted yet
    failure: Failure | None = None


def outcome(
    order: Order, before: SessionView, now: SessionView
) -> tuple[How, Failure | None] | None:
    """How an order has ended; None: not yet. ``before``: when it was given."""
    # The service keeps the request as ``intent`` until the worker begins it. So a
    # session that rests without it, and is not what it was to become, has failed.
    pending, gone = now.facts.intent, now.phase is Phase.STOPPED
    if pending == order.follows and not gone:
        return None
    if order.reached(before, now):
        return How.DONE, None
    if not gone and (pending or not (now.phase.live or now.phase.rests)):
        return None
    failure = now.facts.nap_failure if isinstance(order, Nap | Wake) else None
    reason = Reason.NO_TREE if gone else Reason.CANCELLED
    return How.FAILED, failure or now.failure or _failure(reason)


class Following:
    """The sessions of an order, until each has ended."""

    # ``tell`` is called with a session, its step, bytes done and in all.

    def __init__(
        self,
        order: Order,
        *,
        tell: Callable[[str, str, int, int], None],
        ended: Callable[[str], None],
    ) -> None:
        self._order = order
        self._tell = tell
        self._ended = ended
        #: What each was when it was given, and the time then.
        self._pending: dict[SessionKey, tuple[SessionView, float]] = {}
        self.results: dict[SessionKey, Result] = {}

    def add(self, before: SessionView, asked: SessionView) -> None:
        self._pending[asked.key] = before, asyncio.get_running_loop().time()
        self._take_over(asked)

    async def all(self, client: SessionsClient, limit: float) -> None:
        """Wait for all sessions, ``limit`` seconds; then ``results`` has each."""
        try:
            async with asyncio.timeout(limit):
                while self._pending:
                    await self._read(client)
        except TimeoutError:
            late = _failure(Reason.STILL_WAITING, limit=text.duration(limit))
            for key in list(self._pending):
                self._finish(key, How.WAITING, late)

    async def _read(self, client: SessionsClient) -> None:
        try:
            async with aclosing(client.changes()) as changes:
                async for view in changes:
                    self._take_over(view)
                    if not self._pending:
                        return
        except Unreachable:
            await asyncio.sleep(PAUSE)  # a restart of the service takes some seconds

    def _take_over(self, view: SessionView) -> None:
        if view.key not in self._pending:
            return
        ended = outcome(self._order, self._pending[view.key][0], view)
        if ended is None:
            what, done, total = _step(view.steps)
            self._tell(str(view.key), what or view.phase.value, done, total)
            return
        how, failure = ended
        stored = view.last_suspend.stored_bytes if view.last_suspend else None
        self._finish(view.key, how, failure, stored if how is How.DONE else None)

    def _finish(
        self,
        key: SessionKey,
        how: How,
        failure: Failure | None,
        stored: int | None = None,
    ) -> None:
        _, begun = self._pending.pop(key)
        seconds = asyncio.get_running_loop().time() - begun
        self.results[key] = Result(
            key=key, how=how, seconds=seconds, stored_bytes=stored, failure=failure
        )
        self._ended(str(key))


def _step(steps: list[Step]) -> tuple[str, int, int]:
    """The newest step's title, with bytes done and in all while it is under way."""
    if not steps:
        return "", 0, 0
    last = steps[-1]
    if last.total_bytes and last.state != "done":
        return last.title, last.bytes, last.total_bytes
    return last.title, 0, 0


def _failure(reason: Reason, **facts: Any) -> Failure:
    return codec.failure_of(Refused(reason, **facts))
