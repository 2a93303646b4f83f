"""A session's life as the Hub sees it: start, poll, stop, each as the service plans.

The service decides whether a start is cold, a restore or an adoption, and whether a
stop is real or a release. Without its answer, a session that may have a checkpoint is
not started cold, and a stopped tree that may be a captured one is not ended.

Its pointer is written to the Hub's database before each step, so that a Hub that is
killed in between knows what it began.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    RestoreFailed,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import (
    Placement,
    StartPlan,
    StopPlan,
    Suspension,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner.logins import ClientRepair, Logins, others
from jupyterhub_gpu_reclaim.hub.spawner.progress import CEILING, ProgressReporter
from jupyterhub_gpu_reclaim.hub.spawner.state import (
    Choice,
    Location,
    Pointer,
    PointerPhase,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Failure
    from jupyterhub_gpu_reclaim.hub import patches
    from jupyterhub_gpu_reclaim.hub.client import ServiceClient
    from jupyterhub_gpu_reclaim.hub.spawner.known_servers import KnownServers
    from jupyterhub_gpu_reclaim.hub.spawner.placement import SessionPlacement

    #: The spawner's own ``start()``.
    Start = Callable[[], Awaitable[Any]]

#: Seconds for cleaning up after a start that failed or was cancelled: for an answer of
#: the service, and for the end of what was placed.
CLEANUP_SECONDS = 30.0
#: Seconds after which a slow plan is told to the person who waits, with these words.
SLOW_PLAN_SECONDS = 8.0
SLOW_PLAN = "The machine's agent does not answer; waiting for it …"
#: Seconds for the service to hear of the end of a return before its programs end.
HEAD_START_SECONDS = 0.3
#: Seconds between two attempts to follow a restore.
RECONNECT_SECONDS = 0.5
#: Most bytes of a user's choice that are written again with each step of a session.
LONGEST_CHOICE = 1 << 16
#: Deleted logins of one server that may become valid again, each for one session.
MOST_LAID_ASIDE = 16


class Undo(StrEnum):
    """The effects that a failing start has to take back."""

    NOTHING = ""
    PLAN = "plan"  #: the service's plan to restore
    COLD = "cold"  #: a new session
    RESTORE = "restore"  #: a place, with a checkpoint restored under it or not


class SessionLifecycle:
    """The session of one server.

    ``service`` raises ``Unreachable`` if there is no connection. ``known`` are servers
    that have a session, whatever the Hub's database says.
    """

    pointer = Pointer()
    starting = False
    stopping = False
    _undo = Undo.NOTHING
    #: Whether the last start has failed before it had made anything.
    _refused = False
    #: Whether a resumed session has answered the Hub.
    _confirmed = True
    #: Whether a restarted Hub has polled it, and has not taken it up (yet).
    _checked = False
    #: Whether a stop under way was planned without a service that is about to answer.
    _unsure = False

    def __init__(
        self,
        spawner: SessionPlacement,
        service: Callable[[], ServiceClient],
        clock: Clock,
        known: KnownServers,
    ) -> None:
        self._known = known
        self.logins = Logins(spawner)
        self._spawner = spawner
        self._service = service
        self._clock = clock
        self._log = spawner.log
        #: Of the start under way, of the last one, or of one about to begin.
        self.reporter = ProgressReporter()
        self._last_story = self.reporter.story
        self._repair: ClientRepair | None = None
        self._telling: asyncio.Task[None] | None = None
        self._revoked = 0  #: the login whose revocation the service was told

    # --- the pointer ---

    def load(self, pointer: Pointer) -> None:
        """Continue from the Hub's database, unless it is older (T27)."""
        key = self._spawner.reclaim_key
        if pointer.phase is not PointerPhase.NONE:
            self._known.add(key, pointer.session)  # the folder may be new
        elif self._known.has(key):
            pointer = msgspec.structs.replace(pointer, phase=PointerPhase.UNKNOWN)
        self.pointer = pointer
        self._launch(incarnation=pointer.incarnation, session=pointer.session)
        self._spawner.reclaim_take(pointer.location)
        # Else a resume that fails wipes OAuth client and browser logins (T4).
        self._spawner.will_resume = pointer.precious

    def deletion(self) -> Deletion:
        key = self._spawner.reclaim_key
        known = {*self._known.sessions(key), self.pointer.session} - {""}
        return Deletion(
            user=key.user,
            server=key.server,
            account=self.logins.account(),
            sessions=tuple(sorted(known)),
        )

    def delete(self) -> None:
        self.logins.delete(self.pointer.token_id)
        self.pointer = Pointer()
        self._known.remove(self._spawner.reclaim_key)

    def _launch(self, **changes: Any) -> None:
        launch = msgspec.structs.replace(self._spawner.reclaim_launch, **changes)
        self._spawner.reclaim_launch = launch

    def _update_pointer(self, **changes: Any) -> None:
        # Into the database now (T6).
        known = self.pointer.checkpoint
        if (checkpoint := changes.get("checkpoint", known)) != known:
            changes["suspended_at"] = self._clock.now() if checkpoint else 0.0
            changes.setdefault("suspension", None)
        self._save_pointer(msgspec.structs.replace(self.pointer, **changes))

    def _forget(self) -> None:
        """Drop pointer and old login: no checkpoint and no process is left (T5)."""
        # A checkpoint that was set aside may be brought back under that login only.
        deleted = self.logins.hash_of(self.pointer.token_id)
        self.logins.delete(self.pointer.token_id)
        aside = [each for each in (*self.pointer.laid_aside, deleted) if each]
        self._save_pointer(Pointer(laid_aside=tuple(aside[-MOST_LAID_ASIDE:])))

    def _save_pointer(self, pointer: Pointer) -> None:
        self.pointer = pointer
        self._spawner.will_resume = pointer.precious
        there = pointer.phase is not PointerPhase.NONE
        if there:
            self._known.add(self._spawner.reclaim_key, pointer.session)
        self.logins.save_state()
        if not there:
            self._known.remove(self._spawner.reclaim_key)

    @property
    def ended(self) -> bool:
        """Whether there is no session (any more), neither saved nor with programs."""
        return self.pointer.phase is PointerPhase.NONE and not self._refused

    async def is_over(self) -> bool:
        """Whether what was suspended is never to come back; then it is forgotten.

        The service, which deletes and sets aside, is asked; no answer means no.
        """
        if self.pointer.phase is not PointerPhase.SUSPENDED:
            return False
        before = self.pointer
        plan = await self._plan_stop()
        if plan.action != "stop" or self.pointer != before:
            return False
        self._forget()
        return True

    # --- the service ---

    def _placement(self) -> Placement:
        suspension = self.pointer.suspension or Suspension()
        return Placement(
            key=self._spawner.reclaim_key,
            incarnation=self._spawner.reclaim_launch.incarnation or "none",
            checkpoint=self.pointer.checkpoint,
            term=suspension.term,
            generation=suspension.generation,
            session=self._spawner.reclaim_launch.session,
            remembered=self.pointer.phase is not PointerPhase.NONE,
            owner=self.logins.account(),
            checked=self._checked,
        )

    async def _tell_service(
        self,
        call: str,
        failure: Failure | None = None,
        *,
        asker: patches.Asker | None = None,
    ) -> None:
        """Report an event; a lost report does no harm."""
        by, culled = ("", False) if asker is None else (asker.who, asker.culler)
        placement = msgspec.structs.replace(
            self._placement(), failure=failure, by=by, culled=culled
        )
        with suppress(Unreachable):
            service = self._service()
            try:
                await getattr(service, call)(placement)
            except ReclaimError as error:
                self._warn("service, %s: %s", call, error)

    def _warn(self, message: str, *facts: object) -> None:
        self._log.warning(f"%s: {message}", self._spawner.reclaim_key, *facts)

    # --- start ---

    async def start(self, start: Start) -> Any:
        """Start cold, restore, or adopt what still runs, as the service plans.

        Raises:
            ReclaimError: there is a checkpoint that cannot come back now.
        """
        minted = self._spawner.api_token
        self.starting, self._undo, self._refused = True, Undo.NOTHING, False
        if self.reporter.ended:
            self.reporter = ProgressReporter()
        reporter = self.reporter
        try:
            return await self._start_as_planned(start, minted, reporter)
        except asyncio.CancelledError:
            # The Hub waits for one second, then stops a start that has ended, and
            # takes one that has not for a server that runs: the rest is done later.
            self._begin_cleanup(minted, None)
            raise
        except Exception as error:
            ours = error if isinstance(error, ReclaimError) else None
            cleanup = self._begin_cleanup(minted, ours)
            await asyncio.wait({cleanup}, timeout=CLEANUP_SECONDS)  # T5
            raise
        finally:
            self.starting = False
            reporter.end()
            self._launch(identity=None)

    async def _start_as_planned(
        self, start: Start, minted: str, reporter: ProgressReporter
    ) -> Any:
        if not await self._await_cleanup():
            # Programs that are being ended must not be taken for the session.
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="stop")
        plan = await self._plan_start(reporter)
        if plan.action == "cold":
            return await self._start_cold(start, minted, reporter)
        if plan.action == "restore":
            self._undo = Undo.PLAN
            known = {self.pointer.session, self.pointer.checkpoint} - {""}
            if not known & {plan.session, plan.checkpoint}:
                # The one brought back is another session than the last one.
                self._update_pointer(image="", choice=None)
            self._update_pointer(
                phase=PointerPhase.SUSPENDED,
                checkpoint=plan.checkpoint,
                suspension=plan.suspension or self.pointer.suspension,
            )
            reporter.report("Looking for a place for it …")
            return await self._restore(plan, start, minted, reporter)
        if plan.action == "adopt":
            return await self._adopt(plan, minted)
        if plan.failure is None:
            raise Refused(Reason.INTERNAL, detail=f"plan {plan.action!r}")
        raise codec.error_of(plan.failure, RestoreFailed)

    async def _plan_start(self, reporter: ProgressReporter) -> StartPlan:
        """Get the service's plan; without an answer only what cannot lose anything."""
        former = self._spawner.reclaim_launch
        self._launch(incarnation=uuid.uuid4().hex, session=secrets.token_hex(16))
        loop = asyncio.get_running_loop()
        # Only an agent's silence takes that long, and it is waited for some time.
        slow = loop.call_later(SLOW_PLAN_SECONDS, reporter.report, SLOW_PLAN)
        try:
            before = self.pointer.session
            placement = msgspec.structs.replace(self._placement(), former=before)
            self._launch(account=placement.owner)
            return await self._service().plan_start(placement)
        except Unreachable as error:
            if self.pointer.phase is PointerPhase.NONE:
                self._warn("no plan, cold: %s", error)
                return StartPlan(action="cold")
            self._spawner.reclaim_launch = former
            raise
        finally:
            slow.cancel()

    async def _start_cold(
        self, start: Start, minted: str, reporter: ProgressReporter
    ) -> Any:
        self._forget()
        self._launch(mode="start")
        self._undo = Undo.COLD
        reporter.hand_over()
        launch = self._spawner.reclaim_launch
        self._update_pointer(
            phase=PointerPhase.RUNNING,
            session=launch.session,
            incarnation=launch.incarnation,
        )
        where = await start()
        self._update_pointer(image=self._spawner.reclaim_image(), choice=self._choice())
        self._note_running(minted, where)
        # It runs. The start's limit must not end it for a service that is slow to hear
        # so, or is being started.
        self._telling = asyncio.ensure_future(self._tell_service("placed"))
        return where

    def _choice(self) -> Choice | None:
        # None if it is too large, or not JSON.
        choice = self._spawner.reclaim_choice()
        with suppress(TypeError):  # not JSON
            return choice if len(msgspec.json.encode(choice)) < LONGEST_CHOICE else None
        return None

    async def _restore(
        self, plan: StartPlan, start: Start, minted: str, reporter: ProgressReporter
    ) -> Any:
        identity = plan.identity
        if identity is None:
            raise RestoreFailed(
                Reason.RESTORE_FAILED,
                why="its login is not known",
                detail="no identity",
            )
        number = self._login(identity.api_token, minted, renew=plan.renew_login)
        if not number:  # what was revoked is never made valid again by itself (T7)
            raise RestoreFailed(Reason.TOKEN_REVOKED)
        if plan.session:  # else it was saved without one, and has one from now on
            self._launch(session=plan.session)
        self._repair = await ClientRepair.remember(self._spawner)
        self._spawner.port = identity.port
        self._update_pointer(
            phase=PointerPhase.RESUMING,
            session=self._spawner.reclaim_launch.session,
            incarnation=self._spawner.reclaim_launch.incarnation,
            checkpoint=plan.checkpoint,
            token_id=number,
            port=identity.port,
            location=Location(),
        )
        self._launch(
            mode="hold",
            identity=identity,
            image=self.pointer.image,
            choice=self.pointer.choice,
        )
        self._undo = Undo.RESTORE
        where = await self._hold(start, reporter)
        if self.pointer.choice is not None:
            # The Hub has noted what was chosen now, which is not what comes back.
            self.logins.set_options(self.pointer.choice.options)
        self._update_pointer(location=self._spawner.reclaim_location())
        await self._service().placed(self._placement())
        await self._follow(reporter)
        reporter.report("Waiting for its first answer …", CEILING)
        self._confirmed = False
        self._note_running(identity.api_token, where)
        self.logins.delete(self.logins.token_id(minted))
        return where

    def _login(self, token: str, minted: str, *, renew: bool) -> int:
        """The database id of the session's own token; 0: it may not be valid."""
        number = self.logins.token_id(token)
        aside = others(token, self.pointer.laid_aside)
        ours = aside != self.pointer.laid_aside
        if not number and (renew or ours):
            number = self.logins.renew(token, minted)
            self._warn("its old login is valid again")
        if ours:  # once: a later revocation stands
            self._update_pointer(laid_aside=aside)
        self.logins.take_scopes(number, minted)
        return number

    async def _hold(self, start: Start, reporter: ProgressReporter) -> Any:
        waiting = asyncio.create_task(self._spawner.reclaim_waiting(reporter.report))
        try:
            return await start()
        finally:
            waiting.cancel()

    async def _adopt(self, plan: StartPlan, minted: str) -> Any:
        """Adopt a tree that still runs, with the login it has (T8, T9).

        A Hub whose database is older than the session does not know that login, and
        cannot have revoked it: it is made valid for the account that started the
        session (T26).

        Raises:
            Refused: its login was revoked, or it is not known whose session it is.
            RestoreFailed: its programs have ended.
        """
        spawner, location = self._spawner, self.pointer.location
        unheard_of = self.pointer.incarnation != plan.incarnation
        if unheard_of or not spawner.reclaim_alive():
            found = await spawner.reclaim_find(plan.incarnation)
            if found is None:
                raise RestoreFailed(
                    Reason.RESTORE_FAILED, why="its programs are not found any more"
                )
            location = found
        spawner.reclaim_take(location)
        self._launch(incarnation=plan.incarnation, session=plan.session)
        if plan.identity is not None:
            token, port = plan.identity.api_token, plan.identity.port
        else:
            token = await spawner.reclaim_token()
            port = self.pointer.port or await spawner.reclaim_port()
        renew = plan.renew_login or (unheard_of and plan.owned)
        number = self._login(token, minted, renew=renew)
        if not number:
            why = "the Hub does not know its login, which may have been revoked"
            raise Refused(Reason.NOT_ADOPTED, user=spawner.reclaim_key.user, why=why)
        self._repair = await ClientRepair.remember(spawner)
        spawner.port = port
        where = await spawner.reclaim_where(port)
        if number != self.pointer.token_id:
            self._forget()  # what the older database remembers is over
        self._note_running(token, where)
        self._update_pointer(checkpoint="")
        self.logins.delete(self.logins.token_id(minted))
        return where

    def _note_running(self, token: str, where: Any) -> None:
        self._spawner.api_token = token
        self._update_pointer(
            phase=PointerPhase.RUNNING,
            session=self._spawner.reclaim_launch.session,
            incarnation=self._spawner.reclaim_launch.incarnation,
            token_id=self.logins.token_id(token),
            port=where[1] if isinstance(where, tuple) else 0,
            location=self._spawner.reclaim_location(),
        )

    async def _follow(self, reporter: ProgressReporter) -> None:
        """Follow the restore until it ends, or the Hub's start_timeout.

        Raises:
            RestoreFailed: it failed; the checkpoint is kept.
        """
        mine = self._spawner.reclaim_launch.incarnation
        while True:
            with suppress(Unreachable):
                key = self._spawner.reclaim_key
                async for event in self._service().progress(key):
                    if event.step is not None:
                        reporter.step(event.step)
                    if event.failure is not None:
                        raise codec.error_of(event.failure, RestoreFailed)
                    if event.tree is not None and event.tree.incarnation == mine:
                        return
            # The stream broke: the operation goes on, ask again.
            await asyncio.sleep(RECONNECT_SECONDS)

    # --- a start that fails ---

    def _begin_cleanup(
        self, minted: str, error: ReclaimError | None
    ) -> asyncio.Task[None]:
        """Take back what was begun; the next start, of any spawner, waits for it."""
        cleanups, key = self._spawner.reclaim_cleanups, self._spawner.reclaim_key
        cleanup = asyncio.ensure_future(self._clean_up(minted, error))

        def ended(cleanup: asyncio.Task[None]) -> None:
            if cleanups.get(key) is cleanup:
                del cleanups[key]
            if not cleanup.cancelled() and (why := cleanup.exception()) is not None:
                self._log.error("%s: not cleaned up: %r", key, why)

        if self._undo is not Undo.NOTHING:  # else an earlier one may be under way
            cleanups[key] = cleanup
        cleanup.add_done_callback(ended)
        return cleanup

    async def _await_cleanup(self) -> bool:
        """Wait until the leftovers of a failed or cancelled start are gone (T5, T9)."""
        cleanup = self._spawner.reclaim_cleanups.get(self._spawner.reclaim_key)
        if cleanup is not None:
            await asyncio.wait({cleanup}, timeout=CLEANUP_SECONDS)
        return cleanup is None or cleanup.done()

    async def _clean_up(self, minted: str, error: ReclaimError | None) -> None:
        undo = self._undo
        self._undo = Undo.NOTHING
        if undo is Undo.RESTORE:
            await self._back_to_suspended()
        elif undo is Undo.PLAN:
            failure = None if error is None else codec.failure_of(error)
            await self._tell_service("cancelled", failure)
        elif undo is Undo.COLD:
            await self._spawner.reclaim_end()
            await self._tell_service("cancelled")
            self._forget()
        else:
            self._refused = True
            self._spawner.will_resume = True  # what runs may need the OAuth client
        if self._spawner.will_resume:
            # The Hub deletes nothing of a spawner that will resume.
            self.logins.delete(self.logins.token_id(minted))

    def drop_unused(self, token: str) -> None:
        """Delete a start's token if a hook failed before ``start`` was called (T5).

        The Hub deletes nothing of a spawner that will resume.
        """
        number = self.logins.token_id(token) if self.pointer.suspended else 0
        if number and self.pointer.token_id not in {0, number}:
            self.logins.delete(number)

    async def _back_to_suspended(self) -> None:
        """Undo a failed resume: nothing of it stays, except the checkpoint."""
        telling = asyncio.ensure_future(self._tell_service("cancelled"))
        # Else it counts as failed. But what comes back meanwhile works on, unsaved.
        await asyncio.wait({telling}, timeout=HEAD_START_SECONDS)
        await self._spawner.reclaim_end()
        await telling
        self._update_pointer(phase=PointerPhase.SUSPENDED, location=Location())

    # --- after a start ---

    def watched(self) -> None:
        """Restore the OAuth scopes that the Hub wiped; it polls from now on (T3)."""
        self._checked = False
        if self._repair is not None:
            self._repair.apply(self._spawner)
            self._repair = None

    def answered(self) -> None:
        """The server has answered the Hub: the start went well."""
        if not self._confirmed:
            self._confirmed = True
            self._update_pointer(checkpoint="")

    @property
    def story(self) -> dict[str, Any]:
        begun = self.starting or self.reporter.ended
        return self.reporter.story if begun else self._last_story

    def close_start(self) -> None:
        """Begin to show the next start; ``story`` is kept until it begins."""
        # A page may look before our part of that start begins.
        if self.reporter.ended:
            self._last_story, self.reporter = self.reporter.story, ProgressReporter()

    @property
    def expects_nothing(self) -> bool:
        """Whether no start of ours has begun, and none is known that would resume."""
        return not (self.reporter.ended or self.starting or self.pointer.precious)

    # --- poll ---

    async def poll(self, poll: Callable[[], Awaitable[int | None]]) -> int | None:
        """None while it runs, is being started or captured, else a status.

        A session that is suspended, or was being released or resumed when the Hub died,
        is not running for the Hub, whatever still lives. Nor is one whose start was
        refused: the Hub stops what it could not start, and would end programs that
        another start has made.
        """
        if self.starting:
            return None
        if self._refused:
            return 0
        if await self.is_formers():
            return None
        checked = self._checked or self._spawner._check_pending  # noqa: SLF001 - the Hub's own
        self._checked = bool(checked)
        if self.pointer.precious and not self.stopping:
            return 0
        if self.pointer.out_of_sight:
            try:
                await self._find_session()
            except Unreachable as error:
                self._warn("not looked for: %s", error)
                return None  # nothing is known, so nothing has ended
        status = await poll()
        if self.pointer.phase is not PointerPhase.RUNNING or self.stopping:
            return status
        if status is not None:
            await self._settle_death(status)
        elif self.pointer.token_id and not self.logins.hash_of(self.pointer.token_id):
            self._tell_revoked()
        return status

    async def is_formers(self) -> bool:
        """Whether a server of the former spawner runs, beside whatever is saved.

        It is left as it is: it can be stopped, and is never saved.
        """
        return not self.pointer.begun and await self._spawner.reclaim_former()

    def _tell_revoked(self) -> None:
        number = self.pointer.token_id

        async def tell() -> None:
            try:
                await self._service().login_revoked(self._placement())
            except ReclaimError as error:
                self._warn("login revoked, told later: %s", error)
            else:
                self._revoked = number

        if self._revoked != number and (self._telling is None or self._telling.done()):
            self._telling = asyncio.ensure_future(tell())

    async def _find_session(self) -> None:
        """Find what a Hub that was killed in a start has begun (T25)."""
        spawner = self._spawner
        found = await spawner.reclaim_find(self.pointer.incarnation)
        if found is None:
            return
        spawner.reclaim_take(found)
        token_id = self.logins.token_id(await spawner.reclaim_token())
        port = await spawner.reclaim_port()
        self._update_pointer(location=found, token_id=token_id, port=port)

    async def _settle_death(self, status: Any) -> None:
        """Find out whether an unasked end was a suspend (T1) or is really over."""
        # A late answer is useless: another look, or a stop, has settled it meanwhile,
        # and there may be another session, of another spawner of the Hub.
        before = self.pointer
        plan = await self._plan_stop()
        if self.pointer == before and not self._remember(plan):
            ended = codec.failure_of(self._spawner.reclaim_ending(status))
            await self._tell_service("stopped", ended)
            self._forget()

    def _remember(self, plan: StopPlan) -> bool:
        """Remember what may come back of a session that has ended; False: nothing."""
        if plan.action == "release":
            self._update_pointer(
                phase=PointerPhase.SUSPENDED,
                checkpoint=plan.checkpoint,
                suspension=plan.suspension,
                location=Location(),
            )
        elif plan.action == "keep":
            self._update_pointer(phase=PointerPhase.UNKNOWN)
        return plan.action != "stop"

    # --- stop ---

    async def stop(
        self,
        stop: Callable[[], Awaitable[None]],
        asker: patches.Asker | None = None,
    ) -> None:
        """End the session for real, or release it, as the service says."""
        # The service itself only asks to release what is saved: what runs by now goes
        # on (T28).
        ours = asker is not None and asker.ours
        self.stopping, self._unsure = True, False
        if self._telling is not None:
            self._telling.cancel()  # that it runs would be heard after its end
        try:
            await self._await_cleanup()
            if await self.is_formers():
                await stop()
                return
            if self.pointer.checkpoint and not self._confirmed:
                await self._back_to_suspended()
                return
            plan = await self._plan_stop()
            if plan.action == "release":
                await self._release(plan)
            elif plan.action == "keep" or self._checked or ours:
                # Nobody asked for this end; a restarted Hub gets no answer in time.
                self._warn("its programs are kept")
                self._update_pointer(phase=PointerPhase.UNKNOWN)
            else:
                await self._stop_really(stop, asker)
        finally:
            self.stopping = False

    async def _plan_stop(self) -> StopPlan:
        """Get the service's plan; ``keep`` when it is silent and work may be lost."""
        try:
            return await self._request_stop_plan()
        except Unreachable as error:
            self._warn("stop, no plan: %s", error)
            spawner = self._spawner
            # None: they have ended, or are not seen.
            frozen = spawner.reclaim_frozen() if spawner.reclaim_alive() else None
            keep = bool(spawner.reclaim_service) if frozen is None else frozen
            # Another service is there, and may have saved it and asked for this stop.
            self._unsure = error.reason is Reason.SERVICE_STARTING
            return StopPlan(action="keep" if keep else "stop")
        except ReclaimError as error:
            self._warn("stop, not now: %s", error)
            return StopPlan(action="keep")

    async def _request_stop_plan(self) -> StopPlan:
        """Get the plan, also if an answer is lost: without it, work may end unsaved."""
        try:
            return await self._service().plan_stop(self._placement())
        except Unreachable as error:
            if error.reason is Reason.SERVICE_STARTING:
                raise  # it was waited for
            return await self._service().plan_stop(self._placement())

    async def _stop_really(
        self, stop: Callable[[], Awaitable[None]], asker: patches.Asker | None
    ) -> None:
        self._spawner.will_resume = False
        if self._spawner.reclaim_frozen():
            await self._spawner.reclaim_end()  # it could not react to a polite signal
        else:
            await stop()
        await self._tell_service("stopped", asker=asker)
        if not (self._unsure and self._remember(await self._plan_stop())):
            self._forget()

    async def _release(self, plan: StopPlan) -> None:
        """Release a captured session: first write the pointer (T6), then end it."""
        self._update_pointer(
            phase=PointerPhase.RELEASING,
            checkpoint=plan.checkpoint,
            suspension=plan.suspension,
        )
        try:
            await self._service().release(self._placement())
        except ReclaimError as error:
            # The service settles it: it ends the programs, or lets them go on.
            self._warn("not released yet: %s", error)
            return
        if await self._spawner.reclaim_died():
            await self._spawner.reclaim_end()
            self._update_pointer(phase=PointerPhase.SUSPENDED, location=Location())
