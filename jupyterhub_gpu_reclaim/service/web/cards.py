"""A session as the page shows it: words, numbers and the buttons that make sense.

Pure, so that each case can be tested without a browser. Whether a button's action is
allowed is checked again by the control plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.node_status import STORE_CODES
from jupyterhub_gpu_reclaim.common.orders import (
    LONGEST_KEEP,
    ORDERS,
    OptOut,
    Order,
    Resume,
    Save,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason, plainly
from jupyterhub_gpu_reclaim.controlplane.metrics import WORKING_PERCENT

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import (
        Decision,
        Failure,
        KeptState,
        SessionView,
    )

_STATES: dict[Phase, tuple[str, str]] = {
    Phase.RUNNING: ("Running", "good"),
    Phase.NAPPING: ("Napping", "calm"),
    Phase.WARNED: ("Suspending soon", "warn"),
    Phase.SUSPENDING: ("Suspending", "busy"),
    Phase.RELEASING: ("Finishing suspend", "busy"),
    Phase.SUSPENDED: ("Suspended", "calm"),
    Phase.RESUMING: ("Resuming", "busy"),
    Phase.STOPPED: ("Stopped", "calm"),
}

#: Tone → words before how long ago that began; of the others: "Running for".
_BEGAN = {"busy": "Began", "warn": "Warned"}

#: Orders that wait for a part that is away, or for their turn; if the wait is too long,
#: they are called off.
_ORDERS = {
    "suspend": "It is suspended as soon as possible. Keep running calls that off.",
    "save": "A save point is made as soon as possible.",
    "nap": "It naps as soon as possible.",
    "wake": "It wakes as soon as possible.",
}
#: Reasons against a suspend that say that a session computes, other than on its GPU.
_WORK = {one.value for one in (Reason.KERNEL_BUSY, Reason.CPU_BUSY, Reason.DATA_MOVES)}


@dataclass(frozen=True)
class Button:
    """A form of a card: where it posts to, what it says, what it sends along."""

    action: str
    label: str
    tone: str = "plain"  #: main, plain
    sends: tuple[str, str] = ("", "")  #: name and value of a field of its form
    asks: str = ""  #: what is said before, for the person to confirm; empty: nothing


@dataclass(frozen=True)
class Moment:
    """A point in time for people and for machines."""

    words: str
    iso: str


@dataclass(frozen=True)
class OtherCheckpoint:
    id: str
    title: str  #: "Checkpoint of 2026-11-22 06:44 UTC"
    about: str
    what: str  #: save point or checkpoint
    name: str


def card(
    view: SessionView,
    *,
    now: float,
    user_prefix: str,
    manages: bool = False,
    longest_keep: float = LONGEST_KEEP,
    held: Decision | None = None,
) -> SimpleNamespace:
    """A session as the template prints it."""
    state, tone = _STATES[view.phase]
    user, server = quote(view.key.user, safe=""), quote(view.key.server, safe="")
    suspended = view.phase is Phase.SUSPENDED
    has_saved = suspended and bool(view.checkpoint)
    live, place = view.phase.live, view.facts.place
    failure = view.failure if manages else _for_user(view.failure)
    return SimpleNamespace(
        name=view.key.server or "Default server",
        user=view.key.user,
        # the key, as events name it
        session=str(view.key),
        # address of its pages in the service, without a slash
        url=f"sessions/{view.key.path}",
        open_url=f"{user_prefix}user/{user}/{f'{server}/' if server else ''}",
        phase=view.phase.value,
        state=state,
        tone=tone,
        # before ``since``: "Running for"
        lasts=_BEGAN.get(tone, f"{state} for"),
        since=Moment(words.duration(now - view.since), _iso(view.since)),
        reason=view.verdict.message if view.verdict and live else "",
        due=_due(view, now) if live else None,
        # what it holds, or had held before it napped or was suspended
        gpu=_gpu(view),
        # whether it naps by itself, or why its last nap or wake failed
        nap=_nap(view),
        # "45 %"; empty: not known, or it holds none
        gpu_use=_gpu_use(view),
        idle=_idle(view, now) if live else None,
        kept=_kept(view, now) if live else None,
        pinned_by=view.facts.opted_out_by,
        place=f"Waiting for a free GPU: number {place} in the queue." if place else "",
        # what was asked of it, and has not begun
        order=_ORDERS.get(view.facts.intent, "") if live else "",
        failure=failure.told if failure else "",
        failure_code=failure.code if failure else "",
        failure_hint=failure.hint if failure else "",
        # programs beside it that the reader may end; empty: none
        second=failure.incarnation if failure and manages else "",
        # why it is suspended, and how large it is
        suspended=_suspended(view),
        # why it cannot be resumed now
        held=held if suspended else None,
        # for administrators: the page that leads to the cure of that
        cure=("store" if held.code in STORE_CODES else "nodes")
        if held and manages
        else "",
        # when a suspended session is deleted for its age
        until=_until(view),
        # whether a quota may delete it
        for_quota=bool(view.facts.suspension and view.facts.suspension.for_quota),
        steps=view.steps if tone == "busy" else [],
        main=_main_buttons(view, manages=manages),
        more=_more_buttons(view, longest_keep, manages=manages),
        # orders that have a form of their own
        forms=[each for each in _fitting(view, manages=manages) if each.opens],
        # the checkpoint that "delete" names; empty: none
        deletes=view.checkpoint if has_saved else "",
        deletes_what="save point"
        if any(one.save_point for one in view.kept if one.id == view.checkpoint)
        else "suspended session",
        # its user has a session under a former name
        renamed=failure is not None and failure.code == Reason.RENAMED.value,
        states=_states(view, now),
    )


def _for_user(failure: Failure | None) -> Failure | None:
    if failure is None or (reason := Reason.of(failure.code)).value != failure.code:
        return failure
    plain = plainly(reason, retryable=failure.retryable)
    return (
        msgspec.structs.replace(failure, message=plain, hint="") if plain else failure
    )


def _states(view: SessionView, now: float) -> list[OtherCheckpoint]:
    if not view.phase.live and not view.phase.rests:
        return []
    return [
        OtherCheckpoint(
            id=one.id,
            title=_title(one),
            about=_describe_checkpoint(one, now),
            what=_what(one),
            name=one.name,
        )
        for one in view.kept
        if one.keeping in {"aside", "superseded"}
    ]


def _what(state: KeptState) -> str:
    return "save point" if state.save_point else "checkpoint"


def _title(state: KeptState) -> str:
    name = f" “{state.name}”" if state.name else ""
    return f"{_what(state).capitalize()}{name} of {words.moment(state.created)}"


def _describe_checkpoint(state: KeptState, now: float) -> str:
    parts = [ago(state.created, now).words, words.size(state.logical_bytes)]
    if state.stored_bytes:
        parts[1] += f" ({words.size(state.stored_bytes)} new)"
    in_use = state.keeping == "superseded"
    if in_use and state.save_point:
        parts.append("in use")
    elif in_use:
        parts.append("the session was resumed from it")
    if state.expires is not None and not (in_use and state.name):
        parts.append(f"kept for {words.duration(state.expires - now)}")
    return ", ".join(parts)


def ago(at: float, now: float) -> Moment:
    """A moment in the past: "12 min ago"."""
    return Moment(words.ago(now - at), _iso(at))


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _due(view: SessionView, now: float) -> Moment | None:
    at = view.suspends_at
    if at is None and view.verdict is not None:
        at = view.verdict.at
    if at is None:
        return None
    return Moment(f"in {words.duration(at - now)}" if at > now else "now", _iso(at))


def _gpu(view: SessionView) -> str:
    """Say what it holds ("12 GB on A100"), or what its suspend has freed."""
    if view.phase is Phase.SUSPENDED:
        freed = view.facts.gpus_held
        return f"{words.count(freed, 'GPU')} freed" if freed else ""
    nap = view.facts.nap
    out = f"{words.size(nap.bytes)} of GPU memory moved out" if nap else ""
    if not view.gpus:
        return out
    names = sorted({gpu.model for gpu in view.gpus})
    held = [gpu.memory for gpu in view.gpus if gpu.memory is not None]
    text = ", ".join(names)
    if len(view.gpus) > 1:
        text = f"{len(view.gpus)} \N{MULTIPLICATION SIGN} {text}"
    if held:
        text = f"{words.size(sum(held))} on {text}"
    return ", ".join(filter(None, [text, out]))


def _gpu_use(view: SessionView) -> str:
    percent = view.usage.gpu_percent if view.usage and view.gpus else None
    return "" if percent is None else f"{percent:.0f} %"


def _nap(view: SessionView) -> str:
    if not view.phase.live:
        return ""
    if view.facts.nap_failure:
        if view.facts.wake_failed:
            what = "not back yet"
        else:
            what = "not all of it moved out" if view.facts.nap else "not moved out"
        return f"GPU memory: {what}. {view.facts.nap_failure.told}"
    verdict = view.facts.nap_verdict
    if not verdict or verdict.code == Reason.NAP_OFF.value:
        return ""
    return f"Nap: {verdict.message}"


def _idle(view: SessionView, now: float) -> Moment | None:
    at = view.usage.last_active if view.usage is not None else None
    if at is None or work(view):
        return None
    return Moment(words.duration(now - at), _iso(at))


def work(view: SessionView) -> str:
    """Say what it computes, even if untouched for long."""
    usage, verdict = view.usage, view.verdict
    if usage is not None and usage.busy_kernel:
        return f"Kernel {usage.busy_kernel} is busy."
    percents = [usage.gpu_percent] if usage is not None else []
    percents += [gpu.sm_percent for gpu in view.gpus]
    if any(percent >= WORKING_PERCENT for percent in percents if percent is not None):
        return "Its GPU is busy."
    if verdict is not None and verdict.code in _WORK:
        return verdict.message
    return ""


def _kept(view: SessionView, now: float) -> Moment | None:
    until = view.kept_until
    if until is None or until <= now:
        return None
    return Moment(words.duration(until - now), _iso(until))


def _suspended(view: SessionView) -> str:
    """Give reason and size: "You suspended it. 1.2 GB."."""
    known = view.facts.suspension
    if not known or view.phase is not Phase.SUSPENDED:
        return ""
    size = f"{words.size(known.bytes)}." if known.bytes else ""
    told = view.failure is not None and view.failure.message == known.why
    why = "" if told else known.why
    return f"{why} {size}".strip()


def _until(view: SessionView) -> Moment | None:
    known = view.facts.suspension
    if not known or known.until is None or view.phase is not Phase.SUSPENDED:
        return None
    return Moment(words.moment(known.until), _iso(known.until))


def _fitting(view: SessionView, *, manages: bool) -> list[type[Order]]:
    fit = [each for each in ORDERS if each.fits(view)]
    return [each for each in fit if manages or not each.for_managers]


def _main_buttons(view: SessionView, *, manages: bool) -> list[Button]:
    fit = [each for each in _fitting(view, manages=manages) if each.beside]
    fit.sort(key=lambda each: not each.cures)
    return [
        Button(
            each.kind,
            _label(each, view),
            "main" if each is fit[0] and not each.stops else "plain",
            asks=_suspend_asks(view) if each.stops else "",
        )
        for each in fit
    ]


def _label(order: type[Order], view: SessionView) -> str:
    code = view.failure.code if view.failure is not None else ""
    again = order is Resume and code and not code.startswith("saved_")
    return "Try again" if again else order.label


def _suspend_asks(view: SessionView) -> str:
    what = work(view)
    cut = (
        "Its programs stop until the session is resumed, and their connections to other"
        " machines are cut."
    )
    return what and f"{what} {cut}"


def _more_buttons(
    view: SessionView, longest_keep: float, *, manages: bool
) -> list[Button]:
    if not view.phase.live:
        return []
    wanted = (1, 4, 24) if manages else (1, 4)
    hours = [many for many in wanted if many * 3600 <= longest_keep + 1]
    buttons = [
        Button(
            "keep",
            f"Keep running for {'1 d' if many == 24 else f'{many} h'}",
            sends=("seconds", str(many * 3600)),
        )
        for many in hours
    ]
    if view.kept_until is not None:
        buttons.append(Button("keep", "Keep no longer", sends=("seconds", "0")))
    buttons.append(Button("save", Save.label))
    if view.facts.opted_out_by:
        buttons.append(Button("opt-out", "Suspend when idle again", sends=("out", "0")))
    elif manages:
        buttons.append(Button("opt-out", OptOut.label, sends=("out", "1")))
    return buttons
