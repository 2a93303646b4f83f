"""A session's start: cold, restored, adopted, or refused with the reason.

Part of the mixin. The service decides which; without its answer, a session that may
have
a checkpoint is not started cold.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    RestoreFailed,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import StartPlan
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner import logins
from jupyterhub_gpu_reclaim.hub.spawner.memory import PointerKeeper
from jupyterhub_gpu_reclaim.hub.spawner.progress import CEILING, Narrator
from jupyterhub_gpu_reclaim.hub.spawner.refusal import StartRefused
from jupyterhub_gpu_reclaim.hub.spawner.state import Place, PointerPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Seconds for tidying up after a start that was cancelled.
CALL_OFF_SECONDS = 20.0
#: Seconds between two attempts to follow a restore.
RECONNECT_SECONDS = 0.5


class Starting(PointerKeeper):
    """``start()`` and ``progress()``; ``super().start()`` places."""

    #: What a failing start has to take back: nothing, plan, cold or restore.
    _undo = ""
    _confirmed = True  #: whether a resumed session has answered the Hub
    _narrator: Narrator | None = None
    _story: dict[str, Any] | None = None  #: of the last start
    _repair: logins.ClientRepair | None = None
    _tidying: asyncio.Task[None] | None = None  #: after a start that was cancelled

    async def start(self) -> Any:
        """Start cold, restore, or adopt what still runs, as the service plans.

        Raises:
            StartRefused: there is a checkpoint that cannot come back now.
        """
        await self._called_off()
        minted = self.api_token
        self._starting, self._undo = True, ""
        self._narrator = self._narrator or Narrator()
        try:
            return await self._start_as_planned(minted)
        except asyncio.CancelledError:
            # The Hub waits for one second, then stops a start that has ended, and
            # takes one that has not for a server that runs: the rest is done behind it.
            self._tidying = asyncio.ensure_future(self._tidy_up(minted, None))
            raise
        except ReclaimError as error:
            await self._call_off(minted, error)
            self.log.warning("%s: not started: %s", self.reclaim_key, error)
            raise self._refused(error) from None
        except Exception:
            await self._call_off(minted)
            raise
        finally:
            self._starting = False
            self._narrator.end()
            self._story = self._narrator.story
            self._narrator = self.reclaim_identity = None

    async def _start_as_planned(self, minted: str) -> Any:
        plan = await self._plan_start()
        if plan.action == "cold":
            return await self._start_cold(minted)
        if plan.action == "restore":
            self._undo = "plan"
            self._point(phase=PointerPhase.SUSPENDED, checkpoint=plan.checkpoint)
            return await self._restore(plan, minted)
        if plan.action == "adopt":
            return await self._adopt(plan, minted)
        if plan.failure is None:
            raise Refused(Reason.INTERNAL, detail=f"plan {plan.action!r}")
        raise codec.error_of(plan.failure, RestoreFailed)

    async def _plan_start(self) -> StartPlan:
        """The service's plan; without an answer only what cannot lose anything."""
        former, self.reclaim_incarnation = self.reclaim_incarnation, uuid.uuid4().hex
        try:
            return await self._service.plan_start(self._placement())
        except Unreachable as error:
            if self._pointer.phase is PointerPhase.NONE:
                self.log.warning("%s: no plan, cold: %s", self.reclaim_key, error)
                return StartPlan(action="cold")
            self.reclaim_incarnation = former
            if not self._pointer.saved:
                raise Unreachable(Reason.SAVED_UNKNOWN, detail=error.detail) from None
            raise

    async def _start_cold(self, minted: str) -> Any:
        self._forget()
        self.reclaim_mode, self._undo = "start", "cold"
        if self._narrator is not None:
            self._narrator.hand_over()
        self._point(phase=PointerPhase.RUNNING, incarnation=self.reclaim_incarnation)
        where = await super().start()
        self._now_runs(minted, where)
        await self._tell_service("placed")
        return where

    async def _restore(self, plan: StartPlan, minted: str) -> Any:
        """Hold a place, have the session restored there, keep its login."""
        identity = plan.identity
        if identity is None:
            raise RestoreFailed(
                Reason.RESTORE_FAILED,
                why="its login is not known",
                detail="no identity",
            )
        number = self._known_login(plan, identity.api_token, minted)
        self._repair = await logins.ClientRepair.remember(self)
        self.port = identity.port
        self._point(
            phase=PointerPhase.RESUMING,
            incarnation=self.reclaim_incarnation,
            checkpoint=plan.checkpoint,
            token_id=number,
            port=identity.port,
            place=Place(),
        )
        self.reclaim_identity, self.reclaim_generation = identity, plan.generation
        self.reclaim_mode, self._undo = "hold", "restore"
        where = await self._hold()
        self._point(place=self.reclaim_place())
        await self._service.placed(self._placement())
        await self._follow()
        if self._narrator is not None:
            self._narrator.tell("Waiting for its first answer …", CEILING)
        self._confirmed = False
        self._now_runs(identity.api_token, where)
        logins.delete_token(self, logins.token_id(self, minted))
        return where

    def _known_login(self, plan: StartPlan, token: str, minted: str) -> int:
        """The database id of the session's own token.

        Raises:
            RestoreFailed: the Hub does not know it, and there is no order to renew it:
            the
                spawner must not make a revoked token valid again by itself (T7).
        """
        number = logins.token_id(self, token)
        others = logins.others(token, self._pointer.laid_aside)
        ours = others != self._pointer.laid_aside
        if not number and (plan.renew_login or ours):
            number = logins.renew(self, token, minted)
            self.log.warning("%s: its old login is valid again", self.reclaim_key)
        if ours:  # once: a later revocation stands
            self._point(laid_aside=others)
        if not number:
            raise RestoreFailed(Reason.TOKEN_REVOKED)
        return number

    async def _hold(self) -> Any:
        """Have a place made, and report what that waits for."""
        narrator = self._narrator or Narrator()
        waiting = asyncio.create_task(self.reclaim_waiting(narrator.tell))
        try:
            return await super().start()
        finally:
            waiting.cancel()

    async def _adopt(self, plan: StartPlan, minted: str) -> Any:
        """Adopt a tree that still runs, with the login it has (T8, T9)."""
        place = self._pointer.place
        if self._pointer.incarnation != plan.incarnation or not self.reclaim_alive():
            found = await self.reclaim_find(plan.incarnation)
            if found is None:
                raise RestoreFailed(
                    Reason.RESTORE_FAILED, why="its programs are not found any more"
                )
            place = found
        self.reclaim_take(place)
        self.reclaim_incarnation = plan.incarnation
        if plan.identity is not None:
            token, port = plan.identity.api_token, plan.identity.port
        else:
            token = await self.reclaim_token()
            port = self._pointer.port or await self.reclaim_port()
        self._known_login(plan, token, minted)
        self._repair = await logins.ClientRepair.remember(self)
        self.port = port
        where = await self.reclaim_where(port)
        self._now_runs(token, where)
        self._point(checkpoint="")
        logins.delete_token(self, logins.token_id(self, minted))
        return where

    def _now_runs(self, token: str, where: Any) -> None:
        self.api_token = token
        self._point(
            phase=PointerPhase.RUNNING,
            incarnation=self.reclaim_incarnation,
            token_id=logins.token_id(self, token),
            port=where[1] if isinstance(where, tuple) else 0,
            place=self.reclaim_place(),
        )

    async def _follow(self) -> None:
        """Follow the restore until it ends, or the Hub's start_timeout.

        Raises:
            RestoreFailed: it failed; the checkpoint is kept.
        """
        narrator = self._narrator or Narrator()
        while True:
            with suppress(Unreachable):
                async for event in self._service.progress(self.reclaim_key, 0):
                    if event.step is not None:
                        narrator.step(event.step)
                    if event.failure is not None:
                        raise codec.error_of(event.failure, RestoreFailed)
                    if event.tree is not None:
                        return
            # The stream broke: the operation goes on, ask again.
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _call_off(self, minted: str, error: ReclaimError | None = None) -> None:
        """After a start that failed: leave nothing behind (T5)."""
        self._tidying = asyncio.ensure_future(self._tidy_up(minted, error))
        await self._called_off()

    async def _called_off(self) -> None:
        """Wait until what a failed or cancelled start left behind is gone (T5, T9)."""
        if self._tidying is None:
            return
        done, _ = await asyncio.wait({self._tidying}, timeout=CALL_OFF_SECONDS)
        self._tidying = None
        for task in done:
            if (error := task.exception()) is not None:
                self.log.error("%s: not tidied up: %r", self.reclaim_key, error)

    async def _tidy_up(self, minted: str, error: ReclaimError | None) -> None:
        undo, self._undo = self._undo, ""
        if undo == "restore":
            await self._back_to_saved()
        elif undo == "plan":
            failure = None if error is None else codec.failure_of(error)
            await self._tell_service("cancelled", failure)
        elif undo == "cold":
            await self.reclaim_end()
            await self._tell_service("cancelled")
            self._forget()
        if self._pointer.precious:
            # The Hub deletes nothing of a spawner that will resume.
            logins.delete_token(self, logins.token_id(self, minted))

    async def _back_to_saved(self) -> None:
        """A resume has failed: nothing of it stays, the checkpoint does."""
        await self._tell_service("cancelled")
        await self.reclaim_end()
        self._point(phase=PointerPhase.SUSPENDED, place=Place())

    def _refused(self, error: ReclaimError) -> Exception:
        # The Hub's memory or the service's: one of them knows of a saved session.
        saved = self._pointer.precious or isinstance(error, RestoreFailed)
        return StartRefused(
            error,
            spawn_url=self.reclaim_spawn_url,
            fresh_url=self.reclaim_fresh_url if saved else "",
            kept_days=self.reclaim_kept_days,
        )

    @property
    def reclaim_resuming(self) -> bool:
        """Whether a suspended session is being resumed and has not answered yet."""
        pointer = self._pointer
        unheard = bool(pointer.checkpoint) and not self._confirmed
        return (pointer.saved and self._starting) or unheard

    def start_polling(self) -> None:
        """The Hub's first call after it has wiped the OAuth client's scopes (T3)."""
        if self._repair is not None:
            self._repair.apply(self)
            self._repair = None
        super().start_polling()

    def add_poll_callback(self, callback: Any, *args: Any, **kwargs: Any) -> None:
        """The Hub's last call of a start that went well: the server has answered."""
        if not self._confirmed:
            self._confirmed = True
            self._point(checkpoint="")
        super().add_poll_callback(callback, *args, **kwargs)

    @property
    def reclaim_story(self) -> dict[str, Any]:
        """The start so far, for the page that is loaded in its middle."""
        story = self._narrator.story if self._narrator else self._story
        return story or Narrator().story

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Steps of a resume with bytes and seconds; else the spawner's own."""
        self._narrator = narrator = self._narrator or Narrator()
        async for line in narrator.lines():
            yield line
        if narrator.handed_over:
            async for line in super().progress():
                yield line
