"""Tells people by Apprise what happened.

Notices are lines of the audit log. They are sent by a thread, which has room for some
of them; each is tried once, with a time limit. One that is not taken, or finds no room,
is a line in the log and counts in ``notices_unsent``. Nothing is kept over a restart,
and no session ever waits. Addresses are secrets: no log has them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.controlplane import audit
from jupyterhub_gpu_reclaim.controlplane.audit import sentence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

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


class _Sender(threading.Thread):
    def __init__(self, send: Send, counters: Counters) -> None:
        super().__init__(name="notices", daemon=True)
        self._send, self._counters = send, counters
        self._waiting: queue.Queue[AuditLine] = queue.Queue(ROOM)
        self.start()

    def tell(self, line: AuditLine) -> None:
        if line.what not in KINDS or line.code in _NO_FAILURES:
            return
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._give_up(line, "too many wait")

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
        _log.warning("%s: not told: %s", notice.key, why)


@contextlib.asynccontextmanager
async def telling(
    journal: Journal, send: Send | None, counters: Counters
) -> AsyncIterator[None]:
    if send is None:
        yield
        return
    async with audit.following(journal, _Sender(send, counters).tell):
        yield
