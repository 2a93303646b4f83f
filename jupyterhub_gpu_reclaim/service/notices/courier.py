"""Sends notices to one channel, in order, in a task of its own.

It reads the audit by a mark in the journal, so a restart neither loses notices nor
repeats more than one; notices that are too old are not sent. No session waits for it,
and a failing channel does not end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.controlplane.journal.audit_log import AuditReader
from jupyterhub_gpu_reclaim.service.notices.notice import NotSent, notice_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
    from jupyterhub_gpu_reclaim.service.notices.notice import Channel, Notice
    from jupyterhub_gpu_reclaim.service.notices.settings import Notices

_log = logging.getLogger(__name__)

#: Seconds between two looks at the audit; and after a failure of the journal.
PACE, PAUSE = 1.0, 30.0
#: Seconds before each further try.
RETRIES = (2.0, 15.0, 60.0)
#: Seconds after which a notice is too old to be sent.
OLDEST = 3600.0


class Courier:
    """Sends the notices of one channel.

    Args:
        trail: the audit with this channel's mark.
        channel: takes the notices.
        kinds: of notices that are wanted.
        link: address of the page where people see their sessions.
        clock: for ages and pauses.
    """

    def __init__(
        self,
        trail: AuditReader,
        channel: Channel,
        *,
        kinds: Iterable[str],
        link: str,
        clock: Clock,
    ) -> None:
        self._trail = trail
        self._channel = channel
        self._kinds = frozenset(kinds)
        self._link = link
        self._clock = clock

    async def run(self) -> None:
        """Send notices for ever."""
        while True:
            try:
                pause = 0.0 if await self.once() else PACE
            except ReclaimError as error:
                _log.warning("notices: not read now, later again: %s", error)
                pause = PAUSE
            except Exception:  # noqa: BLE001 the last line of defence: others are told
                _log.exception("notices: %s failed", self._channel.name)
                pause = PAUSE
            await self._clock.sleep(pause)

    async def once(self) -> bool:
        """Send new notices, a limited number; returns whether there were any lines.

        Raises:
            StoreError: the journal could not be read or written.
        """
        lines = self._trail.next()
        for each in lines:
            notice = notice_of(each, self._link)
            if notice is not None and self._is_wanted(notice):
                await self._send(notice)
                self._trail.done(each.id)
        if lines:
            self._trail.done(lines[-1].id)
        return bool(lines)

    def _is_wanted(self, notice: Notice) -> bool:
        age = self._clock.now() - notice.at
        return notice.kind in self._kinds and age <= OLDEST

    async def _send(self, notice: Notice) -> None:
        """Try a few times to send; a notice that fails then is logged and given up."""
        for wait in (*RETRIES, None):
            try:
                await self._channel.send(notice)
            except NotSent as error:
                if wait is None or not error.retryable:
                    self._give_up(notice, error)
                    return
                await self._clock.sleep(wait)
            except Exception:  # noqa: BLE001 one notice that cannot be told must not stop the next
                _log.exception("%s: %s", notice.session, self._channel.name)
                return
            else:
                return

    def _give_up(self, notice: Notice, error: NotSent) -> None:
        name, kind = self._channel.name, notice.kind
        _log.warning("%s: %s about %s not sent: %s", notice.session, name, kind, error)


@contextlib.asynccontextmanager
async def telling(
    journal: Journal, notices: Notices, clock: Clock
) -> AsyncIterator[None]:
    """Send while the block lasts; the rest is sent after the next start.

    Raises:
        Refused: a setting is missing.
        StoreError: the journal does not answer.
    """
    channels = notices.channels(clock)
    tasks = []
    for channel in channels:
        trail = AuditReader(journal, channel.name)
        courier = Courier(
            trail, channel, kinds=notices.kinds, link=notices.link, clock=clock
        )
        tasks.append(asyncio.create_task(courier.run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            channel.close()
