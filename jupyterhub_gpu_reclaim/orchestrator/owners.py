"""Which account of the Hub a user's name belongs to, so that names are never inherited.

The Hub knows accounts, everything here knows names. The spawner tells the account with
each start. A name that comes with another account belongs to somebody else now, or the
Hub has lost its database and it is the same person; this cannot be told from here. So
what the former account has saved is neither brought back nor deleted until a person
says which it is. The user who starts may choose "start fresh": then it is kept, out of
their sight, for as long as anything that is put aside. Or an administrator, who knows,
resumes it: then the name's sessions are the new account's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.errors import Refused
from jupyterhub_gpu_reclaim.models import Phase
from jupyterhub_gpu_reclaim.orchestrator import schema
from jupyterhub_gpu_reclaim.orchestrator.rows import HIDDEN, Keeping
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.models import Placement
    from jupyterhub_gpu_reclaim.orchestrator.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.orchestrator.sessions import Sessions

#: What the audit says of a former account's sessions.
_NEW = "The user's name belongs to another account of the Hub now."


class Owners:
    """Names and accounts.

    Args:
        sessions: the rows.
        aside: seconds for which a former account's saved sessions are kept.
    """

    def __init__(self, sessions: Sessions, aside: float) -> None:
        self._sessions = sessions
        self._aside = aside

    def check(self, placement: Placement) -> None:
        """Before a start: whose name is it?

        Raises:
            Refused: ``former_account``: somebody has to choose first.
            StoreError: the journal does not answer.
        """
        user, owner = placement.key.user, placement.owner
        if not owner:
            return  # a spawner that does not tell
        known = self._known(user)
        if known is None:
            self._sessions.journal.write(*self._belongs(user, owner))
        elif known["owner"] != owner:
            if not self._saved(user):
                self.hand_over(user, owner, fresh=True)
                return
            claim = {**known, "claimed": owner}
            self._sessions.journal.write(*_replace(claim))
            raise Refused(Reason.FORMER_ACCOUNT, user=user)

    def claimed(self, user: str) -> str:
        """Another account that has come with this name; empty: none has."""
        known = self._known(user)
        return "" if known is None else str(known["claimed"])

    def hand_over(self, user: str, owner: str, *, fresh: bool) -> None:
        """The name is that account's from now on, with all or with nothing.

        Args:
            user: the name.
            owner: the account.
            fresh: nothing of the former one's is theirs; what is saved is kept for a
                while, out of their sight.

        Raises:
            StoreError: it could not be written; nothing is changed.
        """
        sessions, now = self._sessions, self._sessions.clock.now()
        belongs = self._belongs(user, owner)
        if not fresh:
            sessions.journal.write(*belongs)
            return
        kept = [self._former(row, now) for row in self._checkpoints(user)]
        sessions.journal.keep(kept)
        for row in sessions.journal.sessions():
            if row.key.user == user and sessions.deletions is not None:
                sessions.deletions.order(row.key, "new account", _NEW)
        keeps = schema.keeps.delete().where(schema.keeps.c.user == user)
        sessions.journal.write(keeps, *belongs)

    def _former(self, row: CheckpointRow, now: float) -> CheckpointRow:
        return msgspec.structs.replace(
            row, keeping=Keeping.FORMER, changed=now, expires=now + self._aside
        )

    def _saved(self, user: str) -> bool:
        """Whether the former account has anything that somebody could want back."""
        return bool(self._checkpoints(user)) or any(
            row.key.user == user and row.phase is not Phase.STOPPED
            for row in self._sessions.journal.sessions()
        )

    def _checkpoints(self, user: str) -> list[CheckpointRow]:
        rows = self._sessions.journal.checkpoints()
        return [r for r in rows if r.key.user == user and r.keeping not in HIDDEN]

    def _known(self, user: str) -> dict[Any, Any] | None:
        table = schema.owners
        found = self._sessions.journal.read(table.select().where(table.c.user == user))
        return found[0] if found else None

    def _belongs(self, user: str, owner: str) -> list[Any]:
        since = self._sessions.clock.now()
        return _replace({"user": user, "owner": owner, "since": since, "claimed": ""})


def _replace(values: dict[Any, Any]) -> list[Any]:
    table = schema.owners
    old = table.delete().where(table.c.user == values["user"])
    return [old, table.insert().values(**values)]
