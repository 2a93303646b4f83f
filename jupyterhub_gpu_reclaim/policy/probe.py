"""The word of an administrator's own probe on whether a session is used.

It only adds to what is seen: a session is suspended if the policy and the probe agree.
An answer that is missing, late or not understood counts as use (law 5). Pure;
``controlplane/decide/judge.py`` asks, ``service/probe.py`` runs it.
"""

from __future__ import annotations

import re
from datetime import datetime

from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.text import moment

_SAID = re.compile(r"(in use until|idle since)\s+(\S+(?: \S+)?)", re.IGNORECASE)
#: Seconds for which an answer holds.
HOLDS = 120.0
#: Seconds by which a clock of another machine may be ahead.
_AHEAD = 60.0


class Probed(Value, frozen=True, kw_only=True):
    """An answer of the probe; without one, ``trouble`` says why."""

    at: float  #: when it was asked
    until: float | None = None  #: in use until then
    since: float | None = None  #: idle since then
    trouble: str = ""


def read(said: str, now: float) -> Probed:
    """Parse ``in use until TIME`` or ``idle since TIME``."""
    # A time is ISO 8601 with its zone, or seconds since the epoch.
    match = _SAID.fullmatch(said.strip())
    try:
        at = _time(match[2]) if match else None
    except (ValueError, OverflowError):
        at = None
    if match is None or at is None:
        return Probed(at=now, trouble=f"it says {said.strip()[:80]!r}")
    if match[1].lower() == "in use until":
        return Probed(at=now, until=at)
    if at > now + _AHEAD:
        return Probed(at=now, trouble="it names a time to come")
    return Probed(at=now, since=at)


def against(probed: Probed | None, now: float) -> tuple[str, float | None]:
    """The probe's reason against a suspend (empty: none), and until when."""
    if probed is None:
        return "it has not answered yet", None
    if probed.trouble:
        return probed.trouble, None
    if now - probed.at > HOLDS:
        return "its last answer is too old", None
    if probed.until is not None and probed.until > now:
        return f"in use until {moment(probed.until)}", probed.until
    return "", None


def _time(text: str) -> float:
    if re.fullmatch(r"\d{1,12}(\.\d+)?", text):
        return float(text)
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("no zone")
    return found.timestamp()
