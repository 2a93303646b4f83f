"""What people and programs can order of a session: a class per kind, in one table.

The routes and their document, the commands, their client, the forms and the pages'
buttons are loops over :data:`ORDERS`. A new kind is a class here, and a method of
``controlplane.people`` of its name. An order's fields are the body of ``POST
api/sessions/{user}/{server}/{kind}``, the options of its command and the fields of its
form.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, get_args

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase, SessionView, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import dashed

#: Longest time that a session can be kept, in seconds.
LONGEST_KEEP = 366 * 86400.0
#: Most characters of a save point's name.
LONGEST_NAME = 80
LIVE = tuple(phase for phase in Phase if phase.live)
#: A session that is on its way back has been suspended.
_SUSPENDED = frozenset({Phase.SUSPENDED, Phase.RESUMING})


def _field(about: str, **shown: Any) -> msgspec.Meta:
    """What a field is for; ``shown``: what its option has of its own, and its input.

    ``option`` is its name, ``default`` what is sent without it, ``off`` what ``--off``
    sends; ``label`` stands beside its input, which takes ``most`` characters.
    """
    return msgspec.Meta(description=about, extra=shown)


class Order(Value, frozen=True, kw_only=True):
    kind: ClassVar[str]  #: its class's name, with dashes
    says: ClassVar[str]  #: one line for a person
    #: What a command asks before it does so to sessions that were not named.
    asks: ClassVar[str]
    #: Whether it asks of named ones, too.
    always_asks: ClassVar[bool] = False
    #: Phases in which it makes sense.
    phases: ClassVar[tuple[Phase, ...]] = LIVE
    #: The intent whose end its command waits for; empty: there is nothing to wait for.
    follows: ClassVar[str] = ""
    #: Whether it goes on after the answer.
    begins: ClassVar[bool] = True
    for_tabs: ClassVar[bool] = False  #: whether an open tab may give it for its own
    for_managers: ClassVar[bool] = False
    #: Whether a manager's word counts for more.
    trusts: ClassVar[bool] = False
    more: ClassVar[str] = ""  #: further sentences of its command's help
    answer: ClassVar[type] = SessionView
    label: ClassVar[str]  #: of its button
    done: ClassVar[str]  #: what the page says once it is given
    #: Likewise of one that takes another back, or is carried out later.
    done_else: ClassVar[str] = ""
    #: What opens its form on the session's own page, and what stands in it; empty: it
    #: has none there.
    opens: ClassVar[str] = ""
    explains: ClassVar[str] = ""
    #: Sentences for the words that it writes into the history; ``{who}`` begins one.
    history: ClassVar[dict[str, str]] = {}
    #: What several sessions are then; empty: it is given to one at a time.
    many: ClassVar[str] = ""
    #: Whether lists have its button beside each session of its phases.
    beside: ClassVar[bool] = False
    #: Failures that its button is there for; none: it is there in each of its phases.
    cures: ClassVar[tuple[Reason, ...]] = ()
    #: Whether programs stop, so that people at work are told first.
    stops: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.kind = dashed(cls.__name__)

    @property
    def needs_manager(self) -> bool:
        return self.for_managers

    @property
    def needs_login(self) -> bool:
        """Whether the pass of an open tab is not enough."""
        return not self.for_tabs

    @classmethod
    def shown(cls, what: str) -> dict[str, Any]:
        """By field, what it has of that (``_field``); those without are left out."""
        return {
            field.name: meta.extra[what]
            for field in msgspec.structs.fields(cls)
            for meta in get_args(field.type)[1:]
            if what in (meta.extra or {})
        }

    @classmethod
    def fits(cls, view: SessionView) -> bool:
        """Whether its button makes sense for a session; ``session.js`` has the same."""
        code = view.failure.code if view.failure else ""
        if cls.cures:
            return any(code == each.value for each in cls.cures)
        return view.phase in cls.phases

    def is_else(self, answer: Any) -> bool:
        """Whether ``done_else`` is true of this one, by its answer."""
        del answer
        return False

    def reached(self, before: SessionView, now: SessionView) -> bool:
        """Whether a session is what it was to become; ``before``: when it was given."""
        del before
        return now.phase.live


class Suspend(Order, frozen=True):
    """The policy is not asked."""

    says: ClassVar = "Suspend the session now and free its machine"
    asks: ClassVar = "suspend"
    follows: ClassVar = "suspend"
    for_tabs: ClassVar = True
    label: ClassVar = "Suspend now"
    history: ClassVar = {"ask to suspend": "{who} asked to suspend it."}
    done: ClassVar = "Suspending the session."
    many: ClassVar = "being suspended"
    beside: ClassVar = True
    stops: ClassVar = True

    def reached(self, before: SessionView, now: SessionView) -> bool:
        del before
        return now.phase in _SUSPENDED


class Resume(Order, frozen=True):
    """A suspend under way is called off."""

    says: ClassVar = "Resume the suspended session"
    asks: ClassVar = "resume"
    phases: ClassVar = (Phase.SUSPENDED,)
    follows: ClassVar = "resume"
    for_tabs: ClassVar = True
    trusts: ClassVar = True
    label: ClassVar = "Resume"
    history: ClassVar = {"ask to resume": "{who} asked to resume it."}
    done: ClassVar = "Resuming the session."
    many: ClassVar = "resuming"
    beside: ClassVar = True


class PutFilesBack(Order, frozen=True):
    """What a resume has asked is answered with yes."""

    says: ClassVar = (
        "Resume the session with its files as they were, where that was asked"
        " (`files_newer`); the newer ones are moved into a folder beside them"
    )
    asks: ClassVar = "put the files back of"
    phases: ClassVar = (Phase.SUSPENDED,)
    follows: ClassVar = "resume"
    trusts: ClassVar = True
    label: ClassVar = "Bring it back with these files"
    history: ClassVar = {
        "put files back": "{who} chose to put its files back as they were saved."
    }
    done: ClassVar = "Resuming the session with its files as they were."
    beside: ClassVar = True
    cures: ClassVar = (Reason.FILES_NEWER,)


class Save(Order, frozen=True):
    """A save point."""

    says: ClassVar = (
        "Save the session while it goes on; if it ends, it can come back as it was"
    )
    asks: ClassVar = "save"
    follows: ClassVar = "save"
    for_tabs: ClassVar = True
    more: ClassVar = "Each stands still for as long as its memory takes to be copied."
    label: ClassVar = "Save point"
    opens: ClassVar = "Save point with a name"
    explains: ClassVar = (
        "It is kept beside later ones, and can be brought back from here."
    )
    history: ClassVar = {"ask to save": "{who} asked for a save point."}
    done: ClassVar = "The session is being saved; it keeps running."
    many: ClassVar = "being saved"

    name: Annotated[
        str,
        _field(
            "name of the save point, which is then kept beside later ones",
            label="Name",
            most=LONGEST_NAME,
        ),
    ] = ""

    def reached(self, before: SessionView, now: SessionView) -> bool:
        """Whether it has another save point than before, or was suspended meanwhile."""
        newest = save_point_of(now)
        return now.phase in _SUSPENDED or newest not in {None, save_point_of(before)}


def save_point_of(view: SessionView) -> str | None:
    """The save point that a session goes back to; None: this start has none."""
    last = view.last_suspend
    if last is None or last.id != view.checkpoint:
        return None
    return last.id if last.incarnation == view.incarnation != "" else None


class Nap(Order, frozen=True):
    """Its user wakes it without an order."""

    says: ClassVar = (
        "Move the GPU memory of the running session into the machine's; what is sent to"
        " it moves it back"
    )
    asks: ClassVar = "move the GPU memory out of"
    phases: ClassVar = (Phase.RUNNING,)
    follows: ClassVar = "nap"
    for_managers: ClassVar = True
    label: ClassVar = "Nap"
    history: ClassVar = {"ask to nap": "{who} asked it to nap."}
    done: ClassVar = "Its GPU memory is being moved out; the session keeps running."
    many: ClassVar = "starting to nap"
    beside: ClassVar = True

    @classmethod
    def fits(cls, view: SessionView) -> bool:
        return super().fits(view) and bool(view.gpus) and not view.facts.nap

    def reached(self, before: SessionView, now: SessionView) -> bool:
        del before
        return naps(now)


class Wake(Order, frozen=True):
    says: ClassVar = "Move the GPU memory of the napping session back"
    asks: ClassVar = "wake"
    phases: ClassVar = (Phase.NAPPING,)
    follows: ClassVar = "wake"
    for_managers: ClassVar = True
    label: ClassVar = "Wake up"
    history: ClassVar = {"ask to wake": "{who} asked to wake it."}
    done: ClassVar = "Its GPU memory is being moved back."
    many: ClassVar = "waking"
    beside: ClassVar = True

    @classmethod
    def fits(cls, view: SessionView) -> bool:
        return view.phase.live and bool(view.facts.nap)

    def reached(self, before: SessionView, now: SessionView) -> bool:
        del before
        return now.phase.live and not naps(now)


def naps(view: SessionView) -> bool:
    """Whether it naps; a warning hides that phase."""
    hidden = view.phase is Phase.WARNED and bool(view.facts.nap)
    return view.phase is Phase.NAPPING or hidden


class Keep(Order, frozen=True):
    """A suspend that was ordered or is under way is taken back."""

    says: ClassVar = "Leave the session alone for a while, whatever it does"
    asks: ClassVar = "leave alone"
    phases: ClassVar = (*LIVE, Phase.SUSPENDING)
    begins: ClassVar = False
    for_tabs: ClassVar = True
    trusts: ClassVar = True
    label: ClassVar = "Keep for 1 h"
    history: ClassVar = {"keep": "{who}"}
    done: ClassVar = "The session is kept running."
    done_else: ClassVar = "The session is no longer kept running."
    many: ClassVar = "kept for an hour"

    seconds: Annotated[
        float,
        msgspec.Meta(ge=0, le=LONGEST_KEEP),
        _field(
            "for so long, such as 30m, 4h or 1d; 0: no longer",
            option="--for",
            default=3600.0,
            off=0.0,
        ),
    ]

    def is_else(self, answer: Any) -> bool:
        del answer
        return not self.seconds


class OptOut(Order, frozen=True):
    """A user may only take it back."""

    says: ClassVar = "Never suspend the session for being idle (`out`), or do again"
    asks: ClassVar = "exclude from all policies"
    begins: ClassVar = False
    label: ClassVar = "Never suspend when idle"
    history: ClassVar = {
        "opt out": "{who} set it never to be suspended when idle.",
        "opt in": "{who} set it to be suspended when idle again.",
    }
    done: ClassVar = "The session will never be suspended when idle."
    done_else: ClassVar = "The session will be suspended when idle again."

    out: Annotated[
        bool, _field("whether it is never suspended by policy", default=True, off=False)
    ]

    @property
    def needs_manager(self) -> bool:
        return self.out

    def is_else(self, answer: Any) -> bool:
        del answer
        return not self.out


class BringBack(Order, frozen=True):
    """The present checkpoint is set aside."""

    says: ClassVar = "Bring one checkpoint back; what the session is in is put aside"
    asks: ClassVar = "bring back"
    phases: ClassVar = tuple(Phase)
    trusts: ClassVar = True
    label: ClassVar = "Bring it back"
    history: ClassVar = {
        "ask to bring back": "{who} asked for another checkpoint of it."
    }
    done: ClassVar = "Resuming the session from that checkpoint."

    checkpoint: Annotated[str, _field("which; `saved` lists them")]
    save_running: Annotated[
        bool, _field("suspend the session first, if it runs; else that is refused")
    ] = False


class Rename(Order, frozen=True):
    """Nothing else changes by it."""

    says: ClassVar = "Give a save point another name, or none: then it is as any other"
    asks: ClassVar = "rename a save point of"
    phases: ClassVar = tuple(Phase)
    for_tabs: ClassVar = True
    begins: ClassVar = False
    label: ClassVar = "Rename"
    history: ClassVar = {"rename": "{who} renamed a save point of it."}
    done: ClassVar = "The save point was renamed."

    checkpoint: Annotated[str, _field("which; `saved` lists them")]
    name: Annotated[str, _field("its name from now on")]

    @property
    def needs_login(self) -> bool:
        # Without a name it is soon deleted, and a tab deletes nothing.
        return not self.name.strip()


class Left(Value, frozen=True, kw_only=True):
    """A checkpoint that is still there."""

    checkpoint: str
    until: float | None = None  #: seconds since the epoch; null: until the reason ends
    why: str


class Deleted(Value, frozen=True, kw_only=True):
    """The outcome of an order to delete."""

    deleted: list[str]  #: ids of the checkpoints that cannot be brought back any more
    kept: list[Left]


class Delete(Order, frozen=True):
    """What is kept all the same is told, until when and why."""

    says: ClassVar = "Delete a checkpoint of the session for good, or all of them"
    asks: ClassVar = "delete checkpoints of"
    always_asks: ClassVar = True
    phases: ClassVar = tuple(Phase)
    begins: ClassVar = False
    answer: ClassVar = Deleted
    label: ClassVar = "Delete for good"
    history: ClassVar = {"discard": "{who} deleted a checkpoint of it."}
    done: ClassVar = "It was deleted for good."
    done_else: ClassVar = (
        "It cannot be brought back any more, and will be deleted as soon as its machine"
        " and the store answer."
    )

    checkpoint: Annotated[
        str, _field("which; without it, the one that the session is suspended in")
    ] = ""
    everything: Annotated[bool, _field("all that the session can do without")] = False

    def is_else(self, answer: Any) -> bool:
        return not answer.deleted


class StartFresh(Order, frozen=True):
    """Nothing is started."""

    says: ClassVar = (
        "Put the suspended session aside, so that the next start is a new one"
    )
    asks: ClassVar = "put aside"
    phases: ClassVar = (Phase.SUSPENDED,)
    label: ClassVar = "Start fresh"
    history: ClassVar = {
        "start fresh": "{who} started fresh; the session under the former name is kept."
    }
    done: ClassVar = "The suspended session is put aside."


class RenewLogin(Order, frozen=True):
    """Nothing is started."""

    says: ClassVar = (
        "Let the next start restore the session's old login, which the Hub no longer"
        " knows"
    )
    asks: ClassVar = "renew the logins of"
    phases: ClassVar = (Phase.SUSPENDED,)
    begins: ClassVar = False
    for_managers: ClassVar = True
    more: ClassVar = (
        "The Hub forgets logins when its database is lost or comes from a backup, and"
        " where somebody has revoked them. The order holds for the next start of each"
        " session, for a day, and is noted in its history. It starts nothing: the user"
        " visits the server."
    )
    label: ClassVar = "Restore its login"
    history: ClassVar = {
        "renew login": "{who} let its next start make its old login valid again."
    }
    done: ClassVar = "The login will be restored when the user next opens the session."
    beside: ClassVar = True
    cures: ClassVar = (Reason.NOT_ADOPTED, Reason.TOKEN_REVOKED)


class RevokeTabs(Order, frozen=True):
    """Pages of its user, and tabs of the next fresh start, are not concerned."""

    says: ClassVar = (
        "Revoke the key with which open tabs of the session ask and steer, also in the"
        " hands of a guest; tabs of the next fresh start have another"
    )
    asks: ClassVar = "revoke the keys of open tabs of"
    phases: ClassVar = (*LIVE, Phase.SUSPENDING, Phase.SUSPENDED)
    begins: ClassVar = False
    label: ClassVar = "Revoke it"
    opens: ClassVar = "Revoke the key of open tabs"
    explains: ClassVar = (
        "Open tabs, also those of guests, can then no longer keep, suspend or resume"
        " this session, and show no warning before a suspend. Tabs of the next fresh"
        " start can."
    )
    history: ClassVar = {"revoke tabs": "{who} revoked the key of its open tabs."}
    done: ClassVar = (
        "Open tabs of the session can no longer see or steer it here; those of its next"
        " fresh start can."
    )


class EndTree(Order, frozen=True):
    """Never of the session itself."""

    says: ClassVar = "End programs of the session that the Hub does not know of"
    asks: ClassVar = "end programs beside"
    always_asks: ClassVar = True
    phases: ClassVar = tuple(Phase)
    begins: ClassVar = False
    for_managers: ClassVar = True
    more: ClassVar = (
        "Two trees of programs of one session are reported (second_tree) and left"
        " alone, since the second is in no checkpoint: what it holds in memory is lost."
        " The session itself is never ended like this."
    )
    label: ClassVar = "End these programs"
    history: ClassVar = {
        "end second tree": "{who} ended programs of it that the Hub did not know of:"
    }
    done: ClassVar = "The programs were ended."

    incarnation: Annotated[str, _field("which; the report names them")]


ORDERS: tuple[type[Order], ...] = tuple(Order.__subclasses__())
KINDS = {each.kind: each for each in ORDERS}
