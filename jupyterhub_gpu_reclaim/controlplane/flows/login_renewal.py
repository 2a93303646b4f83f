"""An administrator's order to make a session's login valid again.

The token of a suspended session is in its memory. If the Hub no longer knows it, it was
revoked, or the Hub's database is another one; the two cannot be told apart, so the
spawner refuses until a manager has ordered otherwise. An order is journalled, is for
one
session and one return, and holds for a day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane.journal import audit_log

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Seconds for which an order holds.
VALID = 86400.0
_MARK = "renew login:"


def order(sessions: Sessions, key: SessionKey, by: str) -> None:
    """Write the order down, with who gave it."""
    until = sessions.clock.now() + VALID
    sessions.journal.write(*audit_log.set_mark(_MARK + key.path, until))
    sessions.update(key, sessions.audit_line(key, by, "renew login"))


def ordered(sessions: Sessions, key: SessionKey) -> bool:
    """Whether there is an order that still holds."""
    until = audit_log.mark(sessions.journal, _MARK + key.path)
    return until is not None and sessions.clock.now() < until


def done(sessions: Sessions, key: SessionKey) -> None:
    """The login is valid again: the order is used up."""
    if audit_log.mark(sessions.journal, _MARK + key.path) is not None:
        sessions.journal.write(*audit_log.set_mark(_MARK + key.path, None))
