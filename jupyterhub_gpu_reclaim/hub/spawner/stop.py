"""A session's end for the Hub: a real stop, or a release.

Part of the mixin. A stopped tree that may be a captured one is never ended while the
service cannot be asked.
"""

from __future__ import annotations

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import StopPlan
from jupyterhub_gpu_reclaim.hub.spawner.start import Starting
from jupyterhub_gpu_reclaim.hub.spawner.state import Place, PointerPhase


class Stopping(Starting):
    """``poll()`` and ``stop()``; ``super()`` looks and ends."""

    #: A Hub that was restarted has looked at it, and has not taken it up (yet).
    _checked = False

    # --- watching ---

    async def poll(self) -> int | None:
        """None while it runs, is being started or captured; a status otherwise.

        A session that is suspended, or was being released or resumed when the Hub
        died, is not running as far as the Hub is concerned, whatever still lives.
        """
        if self._starting:
            return None
        self._checked = self._checked or self._check_pending
        if self._pointer.precious and not self._stopping:
            return 0
        status = await super().poll()
        if (
            status is not None
            and self._pointer.phase is PointerPhase.RUNNING
            and not self._stopping
        ):
            await self._settle_death()
        return status  # type: ignore[no-any-return]

    def start_polling(self) -> None:
        """The Hub polls it from now on, after a start or a check."""
        self._checked = False
        super().start_polling()

    async def _settle_death(self) -> None:
        """It ended without a stop by the Hub: suspended (T1), or really over?"""
        plan = await self._plan_stop()
        if plan.action == "release":
            self._point(
                phase=PointerPhase.SUSPENDED, checkpoint=plan.checkpoint, place=Place()
            )
        elif plan.action == "keep":
            self._point(phase=PointerPhase.UNKNOWN)
        else:
            await self._tell_service("stopped")
            self._forget()

    # --- stop ---

    async def stop(self, now: bool = False) -> None:
        """End it for real, or release it, as the service says."""
        self._stopping = True
        try:
            await self._called_off()
            if self._pointer.checkpoint and not self._confirmed:
                await self._back_to_saved()  # it never answered the Hub
                return
            plan = await self._plan_stop()
            if plan.action == "release":
                await self._release(plan.checkpoint)
            elif plan.action == "keep" or self._checked:
                # Nobody asked for this stop: a restarted Hub got no answer in time.
                self.log.warning("%s: its programs are kept", self.reclaim_key)
                self._point(phase=PointerPhase.UNKNOWN)
            else:
                await self._stop_really(now=now)
        finally:
            self._stopping = False

    async def _plan_stop(self) -> StopPlan:
        """The service's plan; ``keep`` when it does not answer and work may be lost."""
        try:
            return await self._service.plan_stop(self._placement())
        except Unreachable as error:
            self.log.warning("%s: stop, no plan: %s", self.reclaim_key, error)
            keep = self.reclaim_frozen() if self.reclaim_alive() else None
            if keep is None:
                keep = bool(self.reclaim_service)
            return StopPlan(action="keep" if keep else "stop")
        except ReclaimError as error:
            self.log.warning("%s: stop, not now: %s", self.reclaim_key, error)
            return StopPlan(action="keep")

    async def _stop_really(self, *, now: bool) -> None:
        self.will_resume = False
        if self.reclaim_frozen():
            await self.reclaim_end()  # it could not react to a polite signal
        else:
            await super().stop(now=now)
        await self._tell_service("stopped")
        self._forget()

    async def _release(self, checkpoint: str) -> None:
        """It is captured: write the pointer first (T6), then end its programs."""
        self._point(phase=PointerPhase.RELEASING, checkpoint=checkpoint)
        try:
            await self._service.release(self._placement())
        except ReclaimError as error:
            # The service settles it: it ends the programs, or lets them go on.
            self.log.warning("%s: not released yet: %s", self.reclaim_key, error)
            return
        if await self.reclaim_died():
            await self.reclaim_end()
            self._point(phase=PointerPhase.SUSPENDED, place=Place())
