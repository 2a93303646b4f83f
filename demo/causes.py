"""Why a part of a stack did not start, out of its log, in one line.

The first complaint counts: what comes after it is a consequence of it.
"""

from __future__ import annotations

import re

#: The strongest first; each finds the words of a complaint.
_COMPLAINTS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^.*\[ConfigProxy\].*: Uncaught Exception: (.+)$",  # the proxy's end
        r"^\[C [^]]*\] (\S.*)$",  # the Hub's log: critical,
        r"^\[E [^]]*\] (\S.*)$",  # then errors
        r"^\S+Z [CE] [\w.]+: (?:- |service: )?(\S.*)$",  # ours
        r"^Error: (.+)$",  # ours, before there is a log
        r"^\[\w+\] CRITICAL \| (.+)$",  # traitlets', likewise
        r"^(?: *)(\w+(?:Error|Exception|Refused): .+)$",  # the end of a traceback
    )
)


def cause(log: str) -> str:
    """The first complaint of a log, without its time and place; empty if none."""
    for complaint in _COMPLAINTS:
        found = complaint.search(log)
        if found is not None:
            return found[1].strip().rstrip(".")
    return ""
