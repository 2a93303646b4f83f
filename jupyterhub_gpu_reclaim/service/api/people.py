"""Calls of people and programs about sessions: list, show, suspend, resume, keep.

A user sees and steers their own sessions; the manage scope gives all. Nothing here
waits for an operation: it is begun, and the session's view shows its progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import (
    AuditLine,
    Decision,
    KeptState,
    Phase,
    SessionKey,
    SessionView,
    Value,
)
from jupyterhub_gpu_reclaim.common.node_status import no_return
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api.users import Deleted
from jupyterhub_gpu_reclaim.controlplane.model.settings import LONGEST_KEEP
from jupyterhub_gpu_reclaim.service.api.base import Count, Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import Query, operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.controlplane.api.users import UserApi
    from jupyterhub_gpu_reclaim.service.api.base import Person

#: Most lines of a session's history in one answer.
LONGEST_HISTORY = 1000
#: Most sessions that one call may name.
MOST_IN_A_QUERY = 500

#: The sessions that a call is about, where it does not mean all of them.
NAMED = Query(
    "session",
    Annotated[list[str], msgspec.Meta(max_length=MOST_IN_A_QUERY)],
    f"`user/server`, up to {MOST_IN_A_QUERY} times; none: all that you may see.",
)


class Keep(Value, frozen=True, kw_only=True):
    """The time for which a session is left alone; 0 takes an earlier keep back."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_KEEP)]


class KeepLimit(Value, frozen=True, kw_only=True):
    """The longest time for which a session can be kept."""

    longest: float  #: seconds from now on; 0: not at all


class OptOut(Value, frozen=True, kw_only=True):
    """Whether a session is never suspended by policy; the button still does it."""

    out: bool


def check_opt_out(route: PersonRoute, out: bool) -> bool:
    """Check whether that person may opt out.

    Raises:
        Forbidden: a user who may not keep a GPU for ever.
    """
    if out and not route.person.manages:
        raise Forbidden(Reason.FORBIDDEN)
    return out


def named_sessions(route: PersonRoute) -> set[SessionKey] | None:
    """The sessions that the query names, with :data:`NAMED`; None: it names none.

    Raises:
        BadRequest: too many of them.
    """
    named = route.get_query_arguments(NAMED.name)
    if len(named) > MOST_IN_A_QUERY:
        what = f"Name at most {MOST_IN_A_QUERY} sessions."
        raise BadRequest(Reason.INVALID, what=what)
    parts = (name.partition("/") for name in named)
    return {SessionKey(user, server) for user, _, server in parts} or None


class ListSessions(PersonRoute):
    """All sessions that the caller may see."""

    path: ClassVar = "api/sessions"

    @operation(
        "List the sessions that you may see", answer=list[SessionView], query=(NAMED,)
    )
    async def get(self) -> None:
        """List the sessions, by user and server."""
        named = named_sessions(self)
        seen = self.context.control.users.sessions()
        mine = [
            view
            for view in seen
            if self.person.may_see(view.key) and (named is None or view.key in named)
        ]
        self.answer(sorted(mine, key=lambda view: view.key))


class ShowSession(PersonRoute):
    """A session of the caller's."""

    path: ClassVar = "api/sessions/{user}/{server}"
    for_tabs: ClassVar = True

    @operation("Show one session", answer=SessionView, errors=(404,))
    async def get(self, user: str, server: str) -> None:
        """Answer with the session's view."""
        self.answer(self.context.control.users.session(self.key(user, server)))


class Why(PersonRoute):
    """Every reason for and against a suspend, or why it could not come back now."""

    path: ClassVar = "api/sessions/{user}/{server}/why"
    for_tabs: ClassVar = True

    @operation(
        "Why it is suspended, or why not: the deciding reason first; of a suspended"
        " session, why it cannot be resumed at the moment",
        answer=list[Decision],
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        """List the reasons."""
        users, key = self.context.control.users, self.key(user, server)
        found = list(users.why(key))
        if users.session(key).phase is Phase.SUSPENDED:
            held = no_return(self.context.nodes())
            found += [] if held is None else [held]
        self.answer(found)


def _order(
    action: str,
    summary: str,
    give: Callable[[UserApi, SessionKey, Person], Awaitable[SessionView]],
    *,
    status: int = 202,
    errors: tuple[int, ...] = (404, 409),
    for_tabs: bool = False,
    for_managers: bool = False,
) -> type[PersonRoute]:
    """Make the route of an order about one session that needs no more words.

    Args:
        action: the end of its path.
        summary: one line for a person.
        give: gives the order in the name of the caller; returns before it is done.
        status: of the answer.
        errors: beyond those that every caller may meet.
        for_tabs: whether an open tab may give it for its own session.
        for_managers: whether only managers may give it.
    """
    tabs = for_tabs

    class Order(PersonRoute):
        path: ClassVar = f"api/sessions/{{user}}/{{server}}/{action}"
        for_tabs: ClassVar = tabs

        @operation(summary, answer=SessionView, status=status, errors=errors)
        async def post(self, user: str, server: str) -> None:
            key = (self.managed if for_managers else self.key)(user, server)
            view = await give(self.context.control.users, key, self.person)
            self.answer(view, status)

    return Order


class SaveOrder(Value, frozen=True, kw_only=True):
    """The details of an order to save; nothing needs to be sent."""

    name: str = ""  #: name of the save point, which is then kept beside later ones


class SaveSession(PersonRoute):
    """Save a session that goes on."""

    path: ClassVar = "api/sessions/{user}/{server}/save"
    for_tabs: ClassVar = True

    @operation(
        "Save the session while it goes on; if it ends, it can come back as it was",
        body=SaveOrder,
        answer=SessionView,
        status=202,
        errors=(400, 404, 409),
    )
    async def post(self, user: str, server: str) -> None:
        """Begin the save; answers before it is done."""
        key = self.key(user, server)
        order = self.body(SaveOrder) if self.request.body else SaveOrder()
        users, by = self.context.control.users, self.person.label
        view = await users.save(key, by, order.name)
        self.answer(view, 202)


class KeepSession(PersonRoute):
    """Leave a session alone for a while."""

    path: ClassVar = "api/sessions/{user}/{server}/keep"
    for_tabs: ClassVar = True

    @operation(
        "How long you may ask that the session be left alone",
        answer=KeepLimit,
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        """Answer with the time for which the session can be kept."""
        users = self.context.control.users
        users.session(self.key(user, server))
        self.answer(KeepLimit(longest=users.longest_keep(manages=self.person.manages)))

    @operation(
        "Leave the session alone for a while, whatever it does",
        body=Keep,
        answer=SessionView,
        errors=(404, 409),
    )
    async def post(self, user: str, server: str) -> None:
        """Keep the session, or take a keep back."""
        key = self.key(user, server)
        seconds, person = self.body(Keep).seconds, self.person
        keep = self.context.control.users.keep
        self.answer(await keep(key, seconds, person.label, manages=person.manages))


class OptOutSession(PersonRoute):
    """Exclude a session from all policies, or include it again."""

    path: ClassVar = "api/sessions/{user}/{server}/opt-out"

    @operation(
        "Never suspend the session for being idle (`out`), or do again; for"
        " administrators",
        body=OptOut,
        answer=SessionView,
        errors=(404,),
    )
    async def post(self, user: str, server: str) -> None:
        """Set the exclusion, or clear it; a user may only clear it."""
        key = self.key(user, server)
        out = check_opt_out(self, self.body(OptOut).out)
        view = await self.context.control.users.opt_out(key, out, self.person.label)
        self.answer(view)


class SessionHistory(PersonRoute):
    """The history of a session: who did what."""

    path: ClassVar = "api/sessions/{user}/{server}/history"

    @operation(
        "Who did what to the session, when and why; the newest first",
        answer=list[AuditLine],
        query=(Query("limit", Count, "At most that many lines; 100 by itself."),),
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        """List the history."""
        key = self.key(user, server)
        self.context.control.users.session(key)
        limit = min(self.number("limit", 100), LONGEST_HISTORY)
        since = await self.seen_since(user)
        lines = self.context.control.users.audit(key, limit)
        self.answer([line for line in lines if line.at >= since])


class BringBack(Value, frozen=True, kw_only=True):
    """Options of bringing a checkpoint back."""

    #: Save the session first, if it runs; else that is refused.
    save_running: bool = False


class SavedStates(PersonRoute):
    """All checkpoints of a session."""

    path: ClassVar = "api/sessions/{user}/{server}/saved"

    @operation(
        "List the checkpoints of the session, the newest generation first",
        answer=list[KeptState],
        errors=(404,),
    )
    async def get(self, user: str, server: str) -> None:
        """List the checkpoints."""
        self.answer(self.context.control.users.session(self.key(user, server)).kept)

    @operation(
        "Delete all checkpoints of the session; what is kept, until when and why",
        answer=Deleted,
        errors=(404, 409),
    )
    async def delete(self, user: str, server: str) -> None:
        """Delete the checkpoints for good."""
        key, by = self.key(user, server), self.person.label
        self.answer(await self.context.control.users.delete(key, by, everything=True))


class SavedOne(PersonRoute):
    """A checkpoint of a session."""

    path: ClassVar = "api/sessions/{user}/{server}/saved/{checkpoint}"

    @operation(
        "Delete one checkpoint; what is still kept, until when and why",
        answer=Deleted,
        errors=(404, 409),
    )
    async def delete(self, user: str, server: str, checkpoint: str) -> None:
        """Delete the checkpoint for good."""
        key = self.key(user, server)
        by = self.person.label
        self.answer(await self.context.control.users.delete(key, by, checkpoint))


class BringBackSaved(PersonRoute):
    """Bring a checkpoint of a session back."""

    path: ClassVar = "api/sessions/{user}/{server}/saved/{checkpoint}/bring-back"

    @operation(
        "Bring one checkpoint back; what the session is in is put aside",
        body=BringBack,
        answer=SessionView,
        status=202,
        errors=(404, 409),
    )
    async def post(self, user: str, server: str, checkpoint: str) -> None:
        """Begin to bring the checkpoint back; answers before it is done."""
        key, by = self.key(user, server), self.person.label
        save, manages = self.body(BringBack).save_running, self.person.manages
        users = self.context.control.users
        view = await users.bring_back(
            key, checkpoint, by, save_running=save, manages=manages
        )
        self.answer(view, 202)


ROUTES: tuple[type[Route], ...] = (
    ListSessions,
    ShowSession,
    Why,
    _order(
        "suspend",
        "Suspend the session now and free its machine",
        lambda users, key, who: users.suspend(key, who.label),
        for_tabs=True,
    ),
    _order(
        "resume",
        "Resume the suspended session",
        lambda users, key, who: users.resume(key, who.label, manages=who.manages),
        for_tabs=True,
    ),
    _order(
        "put-files-back",
        "Resume the session with its files as they were, where that was asked"
        " (`files_newer`); the newer ones are moved into a folder beside them",
        lambda users, key, who: users.put_files_back(
            key, who.label, manages=who.manages
        ),
    ),
    SaveSession,
    _order(
        "nap",
        "Move the GPU memory of the running session into the machine's; what is sent to"
        " it moves it back; for administrators",
        lambda users, key, who: users.nap(key, who.label),
        for_managers=True,
    ),
    _order(
        "wake",
        "Move the GPU memory of the napping session back; for administrators",
        lambda users, key, who: users.wake(key, who.label),
        for_managers=True,
    ),
    KeepSession,
    OptOutSession,
    SessionHistory,
    _order(
        "renew-login",
        "Let the next start restore the session's old login, which the Hub no longer"
        " knows; for administrators",
        lambda users, key, who: users.renew_login(key, who.label),
        status=200,
        errors=(404,),
        for_managers=True,
    ),
    _order(
        "revoke-tabs",
        "Revoke the key with which open tabs of the session ask and steer, also in the"
        " hands of a guest; tabs of the next fresh start have another",
        lambda users, key, who: users.revoke_tabs(key, who.label),
        status=200,
        errors=(404,),
    ),
    _order(
        "start-fresh",
        "Put the suspended session aside, so that the next start is a new one",
        lambda users, key, who: users.start_fresh(key, who.label),
    ),
    SavedStates,
    SavedOne,
    BringBackSaved,
)
