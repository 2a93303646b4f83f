"""Logging set up alike in every program of ours: one line, UTC, whom it is about first.

Called once by each program (agent, service) at start. It never decides what is
logged: modules take ``logging.getLogger(__name__)`` and write ``%``-style messages
whose first word is ``user/server`` and whose last is the reason. Nothing here may
see a token: what is secret is never handed to a logger.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname).1s %(name)s: %(message)s"
_DATES = "%Y-%m-%dT%H:%M:%S"
_PACKAGE = "jupyterhub_gpu_reclaim"
_CONTROL = {code: f"\\x{code:02x}" for code in [*range(32), 127]}


class OneLineFormatter(logging.Formatter):
    """A record as one line: control characters are shown, not obeyed.

    A user's name, a path or a program's name comes from people; none of them may
    start a line of its own in the log. A traceback keeps its lines, indented.
    """

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(_FORMAT, _DATES)

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, a traceback indented below it."""
        line, _, traceback = super().format(record).partition("\nTraceback ")
        line = line.translate(_CONTROL)
        if not traceback:
            return line
        return line + "\n    Traceback " + traceback.replace("\n", "\n    ")


def set_up(level: int | str = logging.INFO, stream: TextIO | None = None) -> None:
    """Send our package's log to a stream (standard error), in our format.

    Args:
        level: the lowest level shown, by number or name.
        stream: where to; None for standard error.

    Calling it again replaces the former set-up.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLineFormatter())
    logger = logging.getLogger(_PACKAGE)
    for former in list(logger.handlers):
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
