"""Writes events as lines of JSON, each checked against its schema (jupyter-events).

It keeps nothing: a failed write is raised to the caller. JupyterHub's own event log has
the same form, so one collector reads both.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import AuditLine

SCHEMA = Path(__file__).with_name("session-v1.yaml")
SESSION = "urn:jupyterhub-gpu-reclaim:event:session"
#: The setting's value for the standard output, which goes to the Hub's log.
STANDARD_OUTPUT = "-"


class EventLog:
    """The log that events go to.

    Raises:
        Refused: the file cannot be written.
    """

    def __init__(self, place: str) -> None:
        try:
            self._handler = _handler(place)
        except OSError as error:
            what = f"The event log {place} cannot be written: {error.strerror}."
            raise Refused(Reason.SETTING_INVALID, what=what) from error
        # A second and a half, which a service without an event log need not wait for.
        from jupyter_events import EventLogger  # noqa: PLC0415 large

        self._logger = EventLogger(handlers=[self._handler])
        self._logger.register_event_schema(SCHEMA)

    def close(self) -> None:
        self._logger.remove_handler(self._handler)
        self._handler.close()

    def session(self, line: AuditLine) -> None:
        """Write one line of the audit.

        Raises:
            OSError: it could not be written.
        """
        data: dict[str, Any] = {
            "number": line.id,
            "event": line.what,
            "username": line.key.user,
            "servername": line.key.server,
            "by": line.who,
        }
        if line.code:
            data["code"] = line.code
        if line.message:
            data["message"] = line.message
        # jupyter-events adds the "Z" itself and takes a time without a zone for UTC
        when = datetime.fromtimestamp(line.at, UTC).replace(tzinfo=None)
        self._logger.emit(schema_id=SESSION, data=data, timestamp_override=when)


class _Raising(logging.Handler):
    """A failed write is raised, where the library would only print it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        del record
        error = sys.exc_info()[1]
        if error is not None:
            raise error


class _Lines(_Raising, WatchedFileHandler):
    """Appends to a file that only its owner can read; reopens it after a rotation."""

    def _open(self) -> Any:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, 0o600)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")  # a crash has cut the last line
        return os.fdopen(descriptor, "a", encoding="utf-8")


class _Stream(_Raising, logging.StreamHandler[TextIO]):
    pass


def _handler(place: str) -> logging.Handler:
    if place == STANDARD_OUTPUT:
        return _Stream(sys.stdout)
    return _Lines(Path(place).absolute(), encoding="utf-8")
