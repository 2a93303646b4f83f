"""Guards: rules that forbid a suspend, and a nap, however idle the session is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from traitlets import List, TraitError, Unicode, validate
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration, moment
from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.policy.decide import deny

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import Decision, SessionPolicy
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot


class Guards(Configurable):
    min_age = Seconds(
        300.0,
        help="""Seconds after its start during which a session is left alone.

        Longer spares people who start a server and fetch a coffee; shorter gives
        memory back sooner. 0: no such time. Example: 600.
        """,
    ).tag(config=True)

    cool_down = Seconds(
        600.0,
        help="""Seconds after a resume during which a session is left alone.

        For so long, also, a session that was put to nap for another one is not put to
        nap for others again.

        Longer spares people who come back, read, and only then work, a second resume;
        shorter gives memory back sooner after a look in passing. 0: no such time.
        Example: 1800.
        """,
    ).tag(config=True)

    quiet_hours = List(
        Unicode(),
        help="""Times of day at which no session is suspended.

        Each from its first minute to just before its last; one may reach over
        midnight, and one with equal ends is the whole day. They are in the time zone of
        the service: its machine's, or the one that its environment names (``TZ``, such
        as ``Europe/Berlin``). Empty: no such times. Example: ["08:00-18:00"] for a
        machine that is to be given back at night only.
        """,
    ).tag(config=True)

    @validate("quiet_hours")
    def _check_quiet_hours(self, proposal: Any) -> list[str]:
        try:
            for text in proposal["value"]:
                parse_period(text)
        except ValueError as error:
            raise TraitError(f"Guards.quiet_hours: {error}") from None
        found: list[str] = proposal["value"]
        return found

    def made_room(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        """Why the session must not nap for another so soon again; else empty."""
        at, cool_down = snapshot.made_room_at, self._cool_down(snapshot.terms)
        if at is None or not 0 <= now - at < cool_down:
            return []  # a moment to come is of a clock that was put back
        return [
            deny(
                Reason.NAP_MADE_ROOM,
                at + cool_down,
                age=duration(now - at),
                limit=duration(cool_down),
                rule=snapshot.terms.rule("cool_down"),
            )
        ]

    def _cool_down(self, terms: SessionPolicy) -> float:
        return self.cool_down if terms.cool_down is None else terms.cool_down

    def denials(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        return [
            *self._state(snapshot, now),
            *self._hours(snapshot.terms, now),
            *self._ages(snapshot, now),
        ]

    def _state(self, snapshot: SessionSnapshot, now: float) -> Iterator[Decision]:
        phase, terms = snapshot.phase, snapshot.terms
        if phase.rests:
            yield deny(Reason.WRONG_PHASE, phase=phase.value, action="be suspended")
        elif not phase.live:
            yield deny(Reason.OPERATION_IN_FLIGHT, operation=phase.value)
        elif snapshot.waking:
            # It has not read its input, so that by its samples it is idle.
            yield deny(Reason.NAP_WAKING)
        if snapshot.opted_out_by:
            yield deny(Reason.OPTED_OUT, by=snapshot.opted_out_by)
        if terms.unknown:
            yield deny(Reason.RULES_UNKNOWN, what=terms.unknown)
        if terms.never:
            yield deny(Reason.RULED_OUT, rule=terms.by.get("never", "it"))
        until = snapshot.kept_until
        if until is not None and until > now:
            by = snapshot.kept_by or "its user"
            yield deny(Reason.KEPT, until, until=moment(until), by=by)
        until = snapshot.backoff_until
        if until is not None and until > now:
            failure = snapshot.failure
            why = failure.message.rstrip(".") if failure else "reason not recorded"
            yield deny(Reason.BACKING_OFF, until, why=why, wait=duration(until - now))

    def _hours(self, terms: SessionPolicy, now: float) -> Iterator[Decision]:
        own = terms.quiet_hours
        for text in self.quiet_hours if own is None else own:
            period = parse_period(text)
            end = period.end_after(now)
            if end is not None:
                zone = datetime.fromtimestamp(now, UTC).astimezone().tzname()
                yield deny(
                    Reason.QUIET_HOURS,
                    end,
                    start=f"{period.start:%H:%M}",
                    end=f"{period.end:%H:%M} {zone}{terms.rule('quiet_hours')}",
                )

    def _ages(self, snapshot: SessionSnapshot, now: float) -> Iterator[Decision]:
        started, resumed = snapshot.started_at, snapshot.resumed_at
        terms = snapshot.terms
        min_age = self.min_age if terms.min_age is None else terms.min_age
        cool_down = self._cool_down(terms)
        if started is not None and now - started < min_age:
            yield deny(
                Reason.TOO_YOUNG,
                started + min_age,
                age=duration(now - started),
                limit=duration(min_age) + terms.rule("min_age"),
            )
        if resumed is not None and now - resumed < cool_down:
            yield deny(
                Reason.COOLING_DOWN,
                resumed + cool_down,
                age=duration(now - resumed),
                limit=duration(cool_down),
                rule=terms.rule("cool_down"),
            )


_TIME = r"([01]\d|2[0-3]):([0-5]\d)"
_PERIOD = re.compile(rf"{_TIME}-{_TIME}")


class Period(NamedTuple):
    """A period from one time of day to another, which may be on the next day."""

    start: time
    end: time

    def end_after(self, now: float) -> float | None:
        """When the current period ends; None outside of the period."""
        local = datetime.fromtimestamp(now, UTC).astimezone()
        for days in (-1, 0):
            day = local.date() + timedelta(days=days)
            over = day + timedelta(days=1) if self.end <= self.start else day
            # A timestamp, not a difference: days are not always 24 hours long.
            start = datetime.combine(day, self.start).timestamp()
            end = datetime.combine(over, self.end).timestamp()
            if start <= now < end:
                return end
        return None


def parse_period(text: str) -> Period:
    """Parse ``"22:00-06:30"``, or raise ValueError; equal times: the whole day."""
    match = _PERIOD.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a period of a day; write it as '08:00-18:30'"
        )
    hours = [int(part) for part in match.groups()]
    return Period(time(hours[0], hours[1]), time(hours[2], hours[3]))
