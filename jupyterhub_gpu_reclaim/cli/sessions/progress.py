"""Waits until actions are done, and shows their progress meanwhile.

Sessions are followed in the service's stream of changes; :func:`outcome`, which is
pure, decides what a change means for an action.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import Failure, Phase, SessionKey, Value
from jupyterhub_gpu_reclaim.common.orders import Left  # noqa: TC001 - msgspec
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.models import SessionView, Step

#: Seconds between two tries to read the stream again.
PAUSE = 2.0
_LIVE = frozenset(phase for phase in Phase if phase.live)


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


def outcome(action: str, view: SessionView) -> tuple[How, Failure | None] | None:
    """How an action (``suspend``, ``resume``, …) has ended; None: not yet.

    The service keeps the request as ``intent`` until the worker begins it. So a session
    that is where it began, without that intent, has been tried and has failed.
    """
    pending = view.facts.intent == action
    if action in {"nap", "wake"}:
        return None if pending else _nap_outcome(action, view)
    if action == "save" and view.phase.live:
        return None if pending else _save_outcome(view)
    # one that is on its way back already has been suspended
    goal = {Phase.SUSPENDED, Phase.RESUMING} if action == "suspend" else _LIVE
    start = _LIVE if action == "suspend" else {Phase.SUSPENDED}
    if view.phase in goal and not pending:
        return How.DONE, None
    if view.phase is Phase.STOPPED:
        return How.FAILED, view.failure or _failure(Reason.NO_TREE)
    if view.phase in start and not pending:
        return How.FAILED, view.failure or _failure(Reason.CANCELLED)
    return None


def _save_outcome(view: SessionView) -> tuple[How, Failure | None]:
    # One that succeeds clears the last failure.
    return (How.DONE, None) if view.failure is None else (How.FAILED, view.failure)


def _nap_outcome(action: str, view: SessionView) -> tuple[How, Failure | None]:
    """How a nap or wake that is not pending has ended; a warning hides the phase."""
    # A session that was napping and is suspended meanwhile is no more awake than
    # before.
    hidden = view.phase is Phase.WARNED and bool(view.facts.nap)
    naps = view.phase is Phase.NAPPING or hidden
    if view.phase.live and naps is (action == "nap"):
        return How.DONE, None
    failure = view.facts.nap_failure or view.failure
    return How.FAILED, failure or _failure(Reason.CANCELLED)


class Following:
    """The sessions of an action, until each has ended.

    ``tell`` is called with a session, its step, bytes done and in all.
    """

    def __init__(
        self,
        action: str,
        *,
        tell: Callable[[str, str, int, int], None],
        ended: Callable[[str], None],
    ) -> None:
        self._action = action
        self._tell = tell
        self._ended = ended
        self._pending: dict[SessionKey, float] = {}
        self.results: dict[SessionKey, Result] = {}

    def add(self, view: SessionView) -> None:
        self._pending[view.key] = asyncio.get_running_loop().time()
        self._take_over(view)

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
        ended = outcome(self._action, view)
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
        seconds = asyncio.get_running_loop().time() - self._pending.pop(key)
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
