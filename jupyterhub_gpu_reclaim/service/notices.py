"""Tells people by Apprise, and a program by a signed webhook, what happened.

Notices are lines of the audit log. Each channel has a thread, and room for some of
them; each is tried once, with a time limit. One that is not taken, or finds no room, is
a line in the log and counts in ``notices_unsent``. Nothing is kept over a restart, and
no session ever waits. Addresses are secrets: no log has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import logging
import queue
import re
import threading
import time
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, urlsplit

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.controlplane import audit
from jupyterhub_gpu_reclaim.controlplane.audit import sentence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import AuditLine
    from jupyterhub_gpu_reclaim.controlplane.accounting import Counters
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

    Send: TypeAlias = Callable[[AuditLine], str]  # why not, if so; blocks

#: Seconds for each step of a delivery; notices that may wait.
LIMIT, ROOM = 10.0, 100
#: Kinds of notices, by the words of the audit.
KINDS = {
    "warned": "warned",
    "released": "suspended",
    "capture_failed": "suspend-failed",
    "thawed": "suspend-failed",
    "restore_failed": "resume-failed",
    "lost": "resume-failed",
    "vanished": "ended",
    "deletion ahead": "deletion-ahead",
}
#: Reasons that are no failure: called off, or ended by the session's own user.
_NO_FAILURES = CALLED_OFF | {Reason.WENT_ON.value, Reason.SESSION_ENDED.value}
_NAME = re.compile(r"[A-Za-z0-9._@+-]+")

_log = logging.getLogger(__name__)


def webhook(url: str, secret: bytes) -> Send:
    """Make what posts a line as JSON; the signature covers the time and the body."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def post(line: AuditLine) -> str:
        body, at = codec.encode(audit.told(line)), str(int(time.time()))
        headers = {"Content-Type": "application/json", "X-GPU-Reclaim-Timestamp": at}
        if secret:
            signed = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256)
            headers["X-GPU-Reclaim-Signature"] = f"sha256={signed.hexdigest()}"
        with contextlib.closing(kind(parts.netloc, timeout=LIMIT)) as made:
            made.request("POST", path, body, headers)
            status = made.getresponse().status
        return "" if 200 <= status < 300 else f"status {status}"

    return post


def messenger(addresses: Sequence[str]) -> Send:
    """Make what sends a notice by Apprise (``ImportError``: it is not installed)."""
    import apprise  # noqa: PLC0415 an optional extra

    def notify(line: AuditLine) -> str:
        sender, user = apprise.Apprise(), line.key.user
        for address in addresses:
            two = "@" in user and "{user}@" in address  # Apprise would take the second
            if "{user}" not in address or (_NAME.fullmatch(user) and not two):
                sender.add(address.replace("{user}", quote(user, safe="")))
        for each in sender:
            each.socket_connect_timeout = each.socket_read_timeout = LIMIT
        title = f"JupyterHub session {line.key}: {KINDS[line.what]}"
        taken = sender.notify(sentence(line), title=title, body_format="text")
        return "" if taken else "it was refused, or the name is not one receiver"

    return notify


class _Channel(threading.Thread):
    def __init__(self, name: str, send: Send, counters: Counters) -> None:
        super().__init__(name=name, daemon=True)
        self._send, self._counters = send, counters
        self._waiting: queue.Queue[AuditLine] = queue.Queue(ROOM)
        self.start()

    def tell(self, notice: AuditLine) -> None:
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self._give_up(notice, "too many wait")

    def run(self) -> None:
        while True:
            notice = self._waiting.get()
            try:
                why = self._send(notice)
            except Exception as error:  # noqa: BLE001 the next is told all the same
                why = type(error).__name__
            if why:
                self._give_up(notice, why)

    def _give_up(self, notice: AuditLine, why: str) -> None:
        self._counters.notices_unsent.inc()
        _log.warning("%s: %s not told: %s", notice.key, self.name, why)


@contextlib.asynccontextmanager
async def telling(
    journal: Journal, senders: Mapping[str, Send], counters: Counters
) -> AsyncIterator[None]:
    channels = [_Channel(name, send, counters) for name, send in senders.items()]

    def tell(line: AuditLine) -> None:
        if line.what in KINDS and line.code not in _NO_FAILURES:
            for channel in channels:
                channel.tell(line)

    async with audit.following(journal, tell):
        yield
