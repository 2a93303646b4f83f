"""Logging set up alike in every program of ours: one line, UTC, whom it is about first.

Called once by each program (agent, service) at start. It never decides what is
logged: modules take ``logging.getLogger(__name__)`` and write ``%``-style messages
whose first word is ``user/server`` and whose last is the reason. Nothing here may
see a token: what is secret is never handed to a logger.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import unicodedata
from typing import TextIO

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname).1s %(name)s: %(message)s"
_DATES = "%Y-%m-%dT%H:%M:%S"
_PACKAGE = "jupyterhub_gpu_reclaim"
#: Kinds of characters that a terminal or an editor obeys instead of showing: control
#: characters (also those above 127), marks that turn the writing around, line breaks
#: of Unicode, halves of characters.
_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_PLAIN = re.compile(r"[ -~]*")
#: Messages of one kind that are written within so many seconds; more are counted.
_MOST, _WITHIN = 200, 10.0
#: Kinds that are remembered; then counting begins anew.
_MOST_KINDS = 1000


def shown(text: str) -> str:
    """Text with what would be obeyed written as an escape: one line, as it stands."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _OBEYED:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


class OneLineFormatter(logging.Formatter):
    """A record as one line: control characters are shown, not obeyed.

    A user's name, a path or a program's name comes from people; none of them may
    start a line of its own in the log. A traceback keeps its lines, indented; what
    the message says never becomes one.
    """

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(_FORMAT, _DATES)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        """The record's one line, without its traceback."""
        return shown(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """A traceback, whose text may be anybody's, too."""
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        """Where a record was made."""
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join("    " + shown(line) for line in text.split("\n"))


class Throttle(logging.Filter):
    """Lets so many messages of one kind pass, and counts the others.

    A message's kind is its text without its values. Nobody who makes us complain may
    fill the disk with that.
    """

    def __init__(self, most: int = _MOST, within: float = _WITHIN) -> None:
        super().__init__()
        self._most = most
        self._within = within
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write it; the first one after some were left out says so."""
        kind = (record.name, str(record.msg)[:200])
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.clear()
        begun, count = self._kinds.get(kind, (record.created, 0))
        if record.created - begun >= self._within:
            if count > self._most:
                left_out = f" ({count - self._most} more like it were left out)"
                record.msg = str(record.msg) + left_out
            begun, count = record.created, 0
        self._kinds[kind] = (begun, count + 1)
        return count < self._most


def set_up(level: int | str = logging.INFO, stream: TextIO | None = None) -> None:
    """Send our package's log to a stream (standard error), in our format.

    Other libraries' warnings go there in the same format.

    Args:
        level: the lowest level shown, by number or name.
        stream: where to; None for standard error.

    Calling it again replaces the former set-up.
    """
    logger = logging.getLogger(_PACKAGE)
    for former in list(logger.handlers):
        logger.removeHandler(former)
    logger.addHandler(_handler(stream, logging.NOTSET))
    logger.setLevel(level)
    logger.propagate = False
    # of everybody who has no handler: asyncio, tornado, the Hub's own modules
    logging.lastResort = _handler(stream, logging.WARNING)


def _handler(stream: TextIO | None, level: int) -> logging.Handler:
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setLevel(level)
    handler.setFormatter(OneLineFormatter())
    handler.addFilter(Throttle())
    return handler
