"""Logging for all our programs: one line, UTC, session first.

Modules take ``logging.getLogger(__name__)`` and write ``%``-style messages whose first
word is ``user/server`` and whose last is the reason. A secret must never be passed to a
logger.
"""

from __future__ import annotations

import logging
import re
import time
import unicodedata

from jupyterhub_gpu_reclaim.common import throttle

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname).1s %(name)s: %(message)s"
_DATES = "%Y-%m-%dT%H:%M:%S"
_PACKAGE = "jupyterhub_gpu_reclaim"
#: Categories of characters that a terminal or an editor obeys instead of showing:
#: control characters (also those above 127), bidirectional marks, Unicode's line
#: breaks, surrogates.
_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_PLAIN = re.compile(r"[ -~]*")
#: Messages of one kind that are written within so many seconds; more are counted.
_MOST, _WITHIN = 200, 10.0
#: Characters of a message, or of a traceback.
_LONGEST = 16_000


def _short(text: str) -> str:
    left_out = len(text) - _LONGEST
    if left_out <= 0:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … {left_out} characters left out … {text[-half:]}"


def shown(text: str) -> str:
    """Text with such characters escaped: one line, and nothing else changed."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _OBEYED:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


class OneLineFormatter(logging.Formatter):
    """A record as one line: control characters are shown, not obeyed."""

    # Users' names and paths must not start a line; a traceback keeps its own, indented.

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(_FORMAT, _DATES)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        return shown(_short(super().formatMessage(record)))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join("    " + shown(line) for line in _short(text).split("\n"))


class Throttle(logging.Filter):
    """Passes so many messages of one kind, and counts the others."""

    # A kind is a message without its values: its caller cannot fill the disk.

    def __init__(self, most: int = _MOST, within: float = _WITHIN) -> None:
        super().__init__()
        self._kinds = throttle.Throttle(most, per_minute=60 * most / within)

    def filter(self, record: logging.LogRecord) -> bool:
        # The first one after a gap says how many are missing.
        kind = (record.name, str(record.msg)[:200])
        if not self._kinds.lets(kind, record.created):
            return False
        if left_out := self._kinds.held_back(kind):
            record.msg = f"{record.msg} ({left_out} more like it were left out)"
        return True


class News:
    """What is wrong with each of several things, so that it is written once."""

    def __init__(self) -> None:
        self._known: dict[object, str] = {}

    def is_new(self, of: object, trouble: object = "") -> bool:
        """Whether that is wrong with it since now; empty: it is all right."""
        before = self._known.pop(of, "")
        if text := str(trouble):
            self._known[of] = text
        return text not in {"", before}


def set_up(level: int | str = logging.INFO) -> None:
    """Send our log, and others' warnings, to the error output; may be called again."""
    logger = logging.getLogger(_PACKAGE)
    for former in list(logger.handlers):
        logger.removeHandler(former)
    logger.addHandler(_handler(logging.NOTSET))
    logger.setLevel(level)
    logger.propagate = False
    # of all without a handler: asyncio, tornado, the Hub's own modules
    logging.lastResort = _handler(logging.WARNING)


def _handler(level: int) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(OneLineFormatter())
    handler.addFilter(Throttle())
    return handler
