"""``save-all``: save every session that goes on, before something risky.

An upgrade of the Hub or of its chart, another image, a change of the network: sessions
go on through all of it, if it goes well. One that was saved before can be brought back
if it does not.

The orders are given from here, a few at a time on each node: what naps or is idle
first, and of that the small ones, as in a drain. The service carries them out. A
session counts as saved only where its newest save point is another one than before; one
that was suspended meanwhile is as safe.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.cli.output import (
    bars,
    complain,
    complain_of,
    print_json,
    print_table,
    say,
)
from jupyterhub_gpu_reclaim.cli.sessions import DONE, FAILED, LATE
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.cli.sessions.selection import IDLE_SECONDS, is_idle
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import Failure, Phase, SessionKey, Value
from jupyterhub_gpu_reclaim.common.orders import Save
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionView

#: Seconds between two looks.
PAUSE = 1.0
#: Orders that are under way at a time on each node.
AT_ONCE = 2
#: An order that takes longer, in seconds, keeps no other of its node waiting.
HANGS = 300.0
#: Refusals that end by themselves.
_PASSES = {Reason.WRONG_PHASE, Reason.NODE_DRAINS}


class State(StrEnum):
    WAITING = "waiting"  #: for its turn, or for the end of what else is done with it
    SAVING = "saving"
    SAVED = "saved"
    KNOWN = "saved already"  #: and not used since
    REFUSED = "refused"
    ENDED = "ended"  #: by its user; there is nothing to be saved


_GOES_ON = {State.WAITING, State.SAVING}
#: Phases in which a session has nothing to be saved when it is first seen.
_RESTS = {Phase.SUSPENDED, Phase.RESUMING, Phase.STOPPED}


class SavedSession(Value, frozen=True, kw_only=True):
    key: SessionKey
    state: State
    failure: Failure | None = None  #: why it was not saved, the last time


class _Order(NamedTuple):
    before: str  #: the save point that it had; empty: none
    at: float  #: monotonic


class Round:
    """The outcomes so far, and whose turn it is. No I/O.

    A session whose newest save point has another ``name`` is saved again; empty: any
    name will do.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: dict[SessionKey, _Order] = {}
        self.found: dict[SessionKey, SavedSession] = {}

    @property
    def ended(self) -> set[SessionKey]:
        return {k for k, each in self.found.items() if each.state not in _GOES_ON}

    @property
    def goes_on(self) -> bool:
        return len(self.ended) < len(self.found)

    def look(
        self, views: Iterable[SessionView], now: float, clock: float
    ) -> list[SessionView]:
        """Take the sessions' states over; those to be ordered now, in their order.

        ``clock``: seconds of a clock that is never set.
        """
        seen = {view.key: view for view in views}
        for key in self.found.keys() - self.ended - seen.keys():
            self._note(key, State.ENDED)
        for key in seen.keys() - self.ended:
            if key in self.found or seen[key].phase not in _RESTS:
                self._take_over(seen[key])
        under_way = Counter(
            seen[key].facts.node
            for key, order in self._orders.items()
            if self.found[key].state is State.SAVING and clock - order.at < HANGS
        )
        turns = []
        for key in sorted(seen, key=lambda key: _rank(seen[key], now)):
            view = seen[key]
            waits = key in self.found and self.found[key].state is State.WAITING
            if not (waits and view.phase.live) or under_way[view.facts.node] >= AT_ONCE:
                continue
            under_way[view.facts.node] += 1
            turns.append(view)
        return turns

    def asked(self, view: SessionView, clock: float) -> None:
        """Note that the service has taken the order for a session as it was before."""
        self._orders[view.key] = _Order(_id(_newest(view)), clock)
        self._note(view.key, State.SAVING)

    def refused(self, key: SessionKey, error: ReclaimError) -> None:
        """Note a refusal; what passes by itself is asked again."""
        passes = error.retryable or error.reason in _PASSES
        state = State.WAITING if passes else State.REFUSED
        self._note(key, state, codec.failure_of(error))

    def _take_over(self, view: SessionView) -> None:
        key, order = view.key, self._orders.get(view.key)
        if view.phase in {Phase.SUSPENDED, Phase.RESUMING}:
            self._note(key, State.KNOWN if order is None else State.SAVED)
        elif view.phase is Phase.STOPPED:
            self._note(key, State.ENDED)
        elif order is None:
            safe = view.phase.live and self._is_safe(view)
            self._note(key, State.KNOWN if safe else State.WAITING)
        elif view.phase.live and view.facts.intent == "save":
            self._note(key, State.SAVING)
        elif view.phase.live and _id(_newest(view)) not in {"", order.before}:
            self._note(key, State.SAVED)
        elif view.phase.live and not view.facts.intent and view.failure is not None:
            self._note(key, State.REFUSED, view.failure)
        else:  # called off by another order, or it was started again
            del self._orders[key]
            self._note(key, State.WAITING)

    def _note(
        self, key: SessionKey, state: State, failure: Failure | None = None
    ) -> None:
        before = self.found.get(key)
        if state is State.WAITING and failure is None and before is not None:
            failure = before.failure  # still the last that is known
        self.found[key] = SavedSession(key=key, state=state, failure=failure)

    def _is_safe(self, view: SessionView) -> bool:
        """Whether the session is known not to have been used since it was saved."""
        newest, usage = _newest(view), view.usage
        if newest is None or usage is None:
            return False
        if self._name and self._name != _name_of(view, newest.id):
            return False
        # It was used while that was stored, perhaps: what counts is when that began.
        begun = newest.created - sum(step.seconds for step in newest.steps)
        return usage.at > begun and not usage.used_since(begun)


def save_all(args: argparse.Namespace) -> int:
    round_ = Round(args.name.strip())
    ask(args, lambda client: _save_until(client, args, round_))
    sessions = [round_.found[key] for key in sorted(round_.found)]
    if args.json:
        print_json(sessions)
    else:
        _print_outcomes(sessions)
    for each in sessions:
        if each.failure is not None:
            complain_of(each.key, each.failure)
    if round_.goes_on:
        complain("Not done in time; what is being saved goes on. Run save-all again.")
        return LATE
    refused = any(each.state is State.REFUSED for each in sessions)
    return FAILED if refused else DONE


async def _save_until(
    client: SessionsClient, args: argparse.Namespace, round_: Round
) -> None:
    until = time.monotonic() + args.deadline
    views: list[SessionView] | None = await client.sessions()
    with bars() as shown:
        while True:
            before = round_.ended
            if views is not None:
                for view in round_.look(views, time.time(), time.monotonic()):
                    await _order(client, view, args.name, round_)
            ended = round_.ended
            for key in sorted(ended - before):
                if (state := round_.found[key].state) is not State.KNOWN:
                    complain(f"{key}: {state} ({len(ended)} of {len(round_.found)})")
            shown.show(
                "all sessions", "saved", len(ended), len(round_.found), in_bytes=False
            )
            if not round_.goes_on or time.monotonic() >= until:
                return
            await asyncio.sleep(PAUSE)
            try:
                views = await client.sessions()
            except Unreachable:
                views = None  # a restart of the service takes some seconds


async def _order(
    client: SessionsClient, view: SessionView, name: str, round_: Round
) -> None:
    try:
        await client.order(view.key, Save(name))
    except Unreachable:
        pass  # it is its turn again with the next look
    except ReclaimError as error:
        round_.refused(view.key, error)
    else:
        round_.asked(view, time.monotonic())


def _print_outcomes(sessions: list[SavedSession]) -> None:
    if not sessions:
        say("No session runs.")
        return
    rows = [
        (each.key, each.state, each.failure.message if each.failure else "")
        for each in sessions
    ]
    print_table(("SESSION", "STATE", "REASON"), rows)
    of = Counter(each.state for each in sessions)
    left = of[State.WAITING] + of[State.SAVING] + of[State.REFUSED]
    say(
        f"{count(of[State.SAVED], 'session')} saved, {of[State.KNOWN]} saved already,"
        f" {left} left."
    )


def _rank(view: SessionView, now: float) -> tuple[bool, bool, float, SessionKey]:
    """Sort in use last; of the others those that nap first; the small ones first."""
    naps = view.phase is Phase.NAPPING or bool(view.facts.nap)
    in_use = not naps and not is_idle(view, IDLE_SECONDS, now)
    usage = view.usage
    held = usage.held if usage else 0
    return in_use, not naps, held, view.key


def _newest(view: SessionView) -> CheckpointInfo | None:
    """The save point that the session goes back to; None: this start has none."""
    last = view.last_suspend
    if last is None or last.id != view.checkpoint:
        return None
    return last if last.incarnation == view.incarnation != "" else None


def _id(info: CheckpointInfo | None) -> str:
    return "" if info is None else info.id


def _name_of(view: SessionView, checkpoint: str) -> str:
    return next((kept.name for kept in view.kept if kept.id == checkpoint), "")
