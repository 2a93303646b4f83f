"""A session as the page shows it: words, numbers and the buttons that make sense.

Called by ``pages.py`` for every session on the page; pure, so that each case can be
tested without a browser. What a button may do is decided by the orchestrator again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from jupyterhub_gpu_reclaim import words
from jupyterhub_gpu_reclaim.models import Phase

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.models import CheckpointInfo, SessionView, Step

_STATES: dict[Phase, tuple[str, str]] = {
    Phase.RUNNING: ("Running", "good"),
    Phase.WARNED: ("Running, to be suspended soon", "warn"),
    Phase.SUSPENDING: ("Being saved", "busy"),
    Phase.RELEASING: ("Saved, being stopped", "busy"),
    Phase.SUSPENDED: ("Suspended", "calm"),
    Phase.RESUMING: ("Coming back", "busy"),
    Phase.STOPPED: ("Stopped", "calm"),
}


@dataclass(frozen=True)
class Button:
    """One form of a card: where it posts to, what it says, what it sends along."""

    action: str
    label: str
    tone: str = "plain"  #: main, plain
    seconds: int | None = None


@dataclass(frozen=True)
class Progress:
    """One step of an operation under way."""

    title: str
    state: str
    about: str


@dataclass(frozen=True)
class Moment:
    """A point in time for people and for machines."""

    words: str
    iso: str


@dataclass(frozen=True)
class Saved:
    """A saved state that was put aside."""

    id: str
    about: str


@dataclass(frozen=True)
class Card:
    """Everything that the template prints of one session."""

    name: str
    user: str
    session: str  #: the key, as events name it
    url: str  #: of the session's pages, relative to the service, without a slash
    open_url: str
    phase: str
    state: str
    tone: str
    since: Moment
    reason: str
    hint: str
    due: Moment | None
    failure: str
    failure_hint: str
    last: str
    steps: list[Progress]
    buttons: list[Button]
    can_start_fresh: bool
    can_delete: bool
    saved: list[Saved]


def card(view: SessionView, *, now: float, user_prefix: str) -> Card:
    """The card of one session.

    Args:
        view: the session.
        now: seconds since the epoch.
        user_prefix: URL under which the Hub serves ``user/<name>/``.
    """
    state, tone = _STATES[view.phase]
    user, server = quote(view.key.user, safe=""), quote(view.key.server, safe="")
    suspended = view.phase is Phase.SUSPENDED
    has_saved = suspended and bool(view.checkpoint)
    reason, hint = _reason(view)
    return Card(
        name=view.key.server or "Default server",
        user=view.key.user,
        session=str(view.key),
        url=f"sessions/{view.key.path}",
        open_url=f"{user_prefix}user/{user}/{f'{server}/' if server else ''}",
        phase=view.phase.value,
        state=state,
        tone=tone,
        since=Moment(words.duration(now - view.since), _iso(view.since)),
        reason=reason,
        hint=hint,
        due=_due(view, now),
        failure=view.failure.message if view.failure else "",
        failure_hint=view.failure.hint if view.failure else "",
        last=saved_words(view.last_suspend, now) if view.last_suspend else "",
        steps=[_progress(step) for step in view.steps] if tone == "busy" else [],
        buttons=_buttons(view),
        can_start_fresh=has_saved,
        can_delete=has_saved,
        saved=[Saved(one.id, saved_words(one, now)) for one in view.saved],
    )


def ago(at: float, now: float) -> Moment:
    """A moment in the past: "12 min ago"."""
    past = now - at
    text = "just now" if past < 5 else f"{words.duration(past)} ago"
    return Moment(text, _iso(at))


def ahead(at: float, now: float) -> Moment:
    """A moment to come: "in 12 min"."""
    return Moment(f"in {words.duration(at - now)}" if at > now else "now", _iso(at))


def saved_words(info: CheckpointInfo, now: float) -> str:
    """What a checkpoint held and took: "1.2 GB in 3.4 s, 400 MB stored"."""
    took = sum(step.seconds for step in info.steps) or info.frozen_seconds
    text = words.size(info.logical_bytes)
    if took:
        text += f" in {took:.1f} s"
    stored = words.size(info.stored_bytes)
    return f"{text}, {stored} stored, {ago(info.created, now).words}"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _reason(view: SessionView) -> tuple[str, str]:
    """Why it is suspended or not, while it runs; elsewhere the state says it."""
    if view.verdict is None or view.phase not in (Phase.RUNNING, Phase.WARNED):
        return "", ""
    return view.verdict.message, ""


def _due(view: SessionView, now: float) -> Moment | None:
    if view.phase not in (Phase.RUNNING, Phase.WARNED):
        return None
    at = view.suspends_at
    if at is None and view.verdict is not None:
        at = view.verdict.at
    return None if at is None else ahead(at, now)


def _progress(step: Step) -> Progress:
    parts = []
    if step.bytes:
        done = words.size(step.bytes)
        whole = f" of {words.size(step.total_bytes)}" if step.total_bytes else ""
        parts.append(done + whole)
    if step.seconds >= 0.05:
        parts.append(f"{step.seconds:.1f} s")
    return Progress(step.title, step.state, ", ".join(parts))


def _buttons(view: SessionView) -> list[Button]:
    if view.phase in (Phase.RUNNING, Phase.WARNED):
        buttons = [
            Button("suspend", "Suspend now"),
            Button("keep", "Keep 1 h", seconds=3600),
            Button("keep", "Keep 4 h", seconds=4 * 3600),
        ]
        if view.kept_until is not None:
            buttons.append(Button("keep", "Keep no longer", seconds=0))
        return buttons
    if view.phase is Phase.SUSPENDED:
        return [Button("resume", "Try again" if view.failure else "Resume", "main")]
    return []
