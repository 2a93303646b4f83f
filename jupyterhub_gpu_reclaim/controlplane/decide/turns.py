"""Gives turns to the sessions that are to be saved: a few at a time, on each node.

One user's sessions count as one of a node's turns while another user's wait there. What
is under way is read in the rows, so a session that is gone holds no turn, whatever its
agent is still doing. Who waits is only in memory: each asks again and again, and one
that has not asked lately (its node is silent, its Hub busy) holds up nobody.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.models import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions

#: Seconds after its last request in which a session still waits for its turn.
STALE = 5.0

#: Sort key: the lower, the earlier. Equal ones go in the order in which they came.
Rank = tuple[bool | float, ...]


class _Request(NamedTuple):
    since: float
    asked: float  #: the last time
    rank: Rank


@dataclass(eq=False)
class Turns:
    """Turns for suspends, and for save points, which take what is left."""

    sessions: Sessions
    _waiting: dict[SessionKey, _Request] = field(default_factory=dict, init=False)
    #: incarnations that are being saved, which go on and have no phase of their own
    _saved: dict[SessionKey, str] = field(default_factory=dict, init=False)

    def has(self, row: SessionRow, rank: Rank = (), *, first: bool = True) -> bool:
        """Whether the session is saved now; ask again and again.

        ``first``: whether the first request may get a turn; else others can ask before.
        """
        now = self.sessions.clock.monotonic()
        known = self._waiting.get(row.key)
        since = known.since if known is not None else now
        self._waiting[row.key] = _Request(since, now, rank)
        waiting = self._waiting_on(row.node, now)
        busy = self._under_way(row.node)
        users = {key.user for key in busy}
        user = row.key.user
        if known is None and not first:
            return False
        if user in users and any(key.user not in users for key in waiting):
            return False

        def order(key: SessionKey) -> tuple[bool, Rank, float, SessionKey]:
            request = self._waiting[key]
            return key.user in users, request.rank, request.since, key

        ahead = [key for key in waiting if order(key) < order(row.key)]
        if user not in users:  # several of another one's count as one
            busy, ahead = _one_of_each(busy, user), _one_of_each(ahead, user)
        if len(ahead) + len(busy) >= self.sessions.settings.captures:
            return False
        del self._waiting[row.key]
        return True

    def is_free(self, row: SessionRow) -> bool:
        now = self.sessions.clock.monotonic()
        busy = len(self._under_way(row.node))
        return (
            not self._waiting_on(row.node, now)
            and busy < self.sessions.settings.captures
        )

    @contextlib.contextmanager
    def saving(self, row: SessionRow) -> Iterator[None]:
        self._saved[row.key] = row.incarnation
        try:
            yield
        finally:
            del self._saved[row.key]

    def _waiting_on(self, node: str, now: float) -> list[SessionKey]:
        rows = {key: self.sessions.row(key) for key in self._waiting}
        for key, row in rows.items():
            if not row.phase.live or now - self._waiting[key].asked >= STALE:
                del self._waiting[key]
        return [key for key in self._waiting if rows[key].node == node]

    def _under_way(self, node: str) -> list[SessionKey]:
        return [
            row.key
            for row in self.sessions.journal.sessions()
            if row.node == node
            and (
                row.phase is Phase.SUSPENDING
                or (row.phase.live and self._saved.get(row.key) == row.incarnation)
            )
        ]


def _one_of_each(keys: list[SessionKey], user: str) -> list[SessionKey]:
    others = {key.user: key for key in keys if key.user != user}
    return [*others.values(), *(key for key in keys if key.user == user)]
