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

import msgspec

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.throttle import Throttle

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import AuditLine

_log = logging.getLogger(__name__)

SCHEMAS = Path(__file__).parent / "schemas"
SESSION = "urn:jupyterhub-gpu-reclaim:event:session"
REFUSED = "urn:jupyterhub-gpu-reclaim:event:refused"
#: The setting's value for the standard output, which goes to the Hub's log.
STANDARD_OUTPUT = "-"
#: Most characters of path, method and reason of a request in the log; the rest is cut.
LONGEST_PATH, LONGEST_METHOD, LONGEST_MESSAGE = 1024, 32, 1024
#: Refusals of one caller that are written at once, and a minute; others are counted.
#: All that the Hub does not know are one caller.
AT_ONCE, PER_MINUTE = 30, 10

#: The journal's words for what happened, and the schema's.
EVENTS = {
    "ask to suspend": "suspend-requested",
    "ask to resume": "resume-requested",
    "warned": "warned",
    "stays": "warning-withdrawn",
    "suspend": "suspending",
    "committed": "saved",
    "released": "suspended",
    "capture_failed": "suspend-failed",
    "thawed": "suspend-undone",
    "waits for a GPU": "waiting",
    "restore": "resuming",
    "restored": "resumed",
    "restore_failed": "resume-failed",
    "keep": "kept",
    "opt in": "opted-in",
    "opt out": "opted-out",
    "discard": "discarded",
    "discarded": "discarded",
    "retention": "discarded",
    "deletion ahead": "deletion-ahead",
    "put_aside": "put-aside",
    "user deleted": "put-aside",
    "forget": "deleted",
    "started": "started",
    "stopped": "stopped",
    "vanished": "ended",
    "lost": "ended-after-return",
    "found_running": "found-running",
    "found_saved": "found-saved",
}


class Refusal(Value, frozen=True, kw_only=True):
    """A request that would have changed something, and was refused."""

    at: float
    by: str  #: empty: not known to the Hub
    method: str
    path: str
    status: int
    code: str
    message: str


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
        self._refusals = Throttle(AT_ONCE, PER_MINUTE)
        for schema in sorted(SCHEMAS.glob("*.yaml")):
            self._logger.register_event_schema(schema)

    def close(self) -> None:
        self._logger.remove_handler(self._handler)
        self._handler.close()

    def session(self, line: AuditLine) -> None:
        """Write one line of the audit.

        Raises:
            OSError: it could not be written.
        """
        event = EVENTS.get(line.what, "other")
        data: dict[str, Any] = {
            "number": line.id,
            "event": event,
            "username": line.key.user,
            "servername": line.key.server,
            "by": line.who,
        }
        if event == "other":
            data["what"] = line.what
        if line.code:
            data["code"] = line.code
        if line.message:
            data["message"] = line.message
        self._emit(SESSION, data, line.at)

    def refused(self, refusal: Refusal) -> None:
        """Write a refused request, if there were few; a failed write is only logged."""
        if not self._refusals.lets(refusal.by, refusal.at):
            return
        data = msgspec.structs.asdict(refusal)
        data["path"] = refusal.path[:LONGEST_PATH]
        data["method"] = refusal.method[:LONGEST_METHOD]
        data["message"] = refusal.message[:LONGEST_MESSAGE]
        if left_out := self._refusals.held_back(refusal.by):
            data["left_out"] = left_out
        try:
            self._emit(REFUSED, data, data.pop("at"))
        except OSError as error:
            _log.warning("events: a refusal could not be written: %s", error)

    def _emit(self, schema: str, data: dict[str, Any], at: float) -> None:
        # jupyter-events adds the "Z" itself and takes a time without a zone for UTC
        when = datetime.fromtimestamp(at, UTC).replace(tzinfo=None)
        self._logger.emit(schema_id=schema, data=data, timestamp_override=when)


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
