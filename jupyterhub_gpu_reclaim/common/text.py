"""Sizes, durations and counts for people, rounded: never to be computed with."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """Bytes in decimal units, two to three digits: ``"1.5 GB"``."""
    value = float(count)
    for unit in _SIZES:
        if abs(value) < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1000
    digits = 1 if unit != "B" and abs(value) < 9.95 else 0
    return f"{value:.{digits}f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in the one or two largest units that matter: ``"1 h 5 min"``."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest} s"
    minutes = round(total / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def moment(at: float) -> str:
    """A point in time in UTC: ``"2026-11-22 06:44 UTC"``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def count(number: float, noun: str) -> str:
    """A number of things: ``"1 session"``, ``"2 sessions"``."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def dashed(name: str) -> str:
    """A class's name as a word of commands and URLs: ``"PutBack"`` → ``"put-back"``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def plain(value: object) -> str:
    """A value as text in which nothing moves a terminal's cursor."""
    return "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value)
    )


def ago(past: float) -> str:
    """A time in the past in seconds: "12 min ago"."""
    return "just now" if past < 5 else f"{duration(past)} ago"


def progress(count: int, total: int, seconds: float) -> str:
    """What a step has done: "1.2 GB of 4.0 GB, 3.1 s"; may be empty."""
    words = []
    if total:
        words.append(f"{size(count)} of {size(total)}")
    elif count:
        words.append(size(count))
    if seconds >= 0.05:
        words.append(f"{seconds:.1f} s")
    return ", ".join(words)
