"""Which account of the Hub a session belongs to, so that names inherit nothing.

The Hub knows accounts, everything here knows names. The spawner tells the account with
each start. If a name comes with another account, it belongs to another person now, or
the Hub has lost its database and it is the same person; the two cannot be told apart
here. So the former account's checkpoints are neither brought back nor deleted until a
person decides. If the user chooses "start fresh", they are kept, hidden from that user,
as long as others that are set aside. If an administrator resumes the session, it
belongs to the new account. What runs is neither adopted nor ended: an administrator
lets the new account in, or suspends it.

A journal that was lost knows no account. Then the manifests say whose they are; of one
that an older agent has written, what was saved before the account was made belongs to a
former one.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Placement, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Stands for the next account of that name that starts the server.
_WHOEVER_COMES = "*"
#: What the audit says of a former account's sessions.
_NEW = "The user's name belongs to another account of the Hub now."
_ANOTHER = (
    "another account of that name has started it, of this Hub before its database was"
    " replaced, or of a user who was deleted since"
)


class Owners:
    """Which account owns which name.

    Args:
        sessions: the rows.
        aside: seconds for which a former account's checkpoints are kept.
    """

    def __init__(self, sessions: Sessions, aside: float) -> None:
        self._sessions = sessions
        self._aside = aside

    def check(self, placement: Placement) -> None:
        """Check, before a start, whose session it is; repeat it if more was found.

        Raises:
            Refused: ``former_account``: a person has to choose first;
                ``not_adopted``: the former account's session runs.
            StoreError: the journal does not answer.
        """
        key, owner = placement.key, placement.owner
        if not owner:
            return  # a spawner that does not report it
        known = self._known(key)
        if known is None or not known["owner"]:  # a claim alone: nobody knows, either
            current = self._sessions.row(key).checkpoint
            if current in {row.id for row in self._before(key, owner)}:
                claim = {"owner": "", "since": 0.0, "claimed": owner}
                self._sessions.journal.write(*_replace(key, claim))
                raise Refused(Reason.FORMER_ACCOUNT, user=key.user)
            if known is not None:  # another one had tried before
                self._sessions.journal.write(*self._belongs(key, owner))
        elif known["owner"] not in {owner, _WHOEVER_COMES}:
            row, own = self._sessions.row(key), placement.checkpoint
            # The Hub remembers it of that account: the journal is older than that.
            found = row.phase is Phase.SUSPENDED and own == row.checkpoint != ""
            found = found and not self._names_another(own, owner)
            if found or row.phase is Phase.STOPPED:
                self.hand_over(key, owner, fresh=True, own=own)
                return
            claim = {**known, "claimed": owner}
            self._sessions.journal.write(*_replace(key, claim))
            self.spare(key)
            raise Refused(Reason.FORMER_ACCOUNT, user=key.user)

    @staticmethod
    def refuse_anothers(tree: Tree, placement: Placement) -> None:
        """Check that what runs is that account's; older spawners have noted none.

        An administrator's order to renew its login says that it is.

        Raises:
            Refused: ``not_adopted``.
        """
        if placement.owner and tree.account not in {"", placement.owner}:
            user = placement.key.user
            raise Refused(Reason.NOT_ADOPTED, user=user, why=_ANOTHER)

    def spare(self, key: SessionKey) -> None:
        """Check that no former account's session runs, which may not be ended.

        Raises:
            Refused: ``not_adopted``: it runs; its page says so.
        """
        if self._sessions.row(key).phase in LIVE:
            running = Refused(Reason.NOT_ADOPTED, user=key.user, why=_ANOTHER)
            self._sessions.update(key, failure=codec.failure_of(running))
            raise running

    def owns(self, placement: Placement) -> bool:
        """Whether that very account is known to be the one that started the session."""
        return placement.owner != "" and self._owner(placement.key) == placement.owner

    def servers(self, placement: Placement) -> list[SessionKey]:
        """That server under each name that its account was known by."""
        if not placement.owner:
            return []
        table = schema.owners
        its = table.c.owner == placement.owner
        query = table.select().where(its & (table.c.server == placement.key.server))
        rows = self._sessions.journal.read(query)
        return [SessionKey(row["user"], row["server"]) for row in rows]

    def note(self, placement: Placement) -> None:
        """The server belongs to that account from now on, if to none before.

        Raises:
            StoreError: it could not be written.
        """
        key, owner = placement.key, placement.owner
        if not owner:
            return
        known = self._owner(key)
        if not known:
            now = self._sessions.clock.now()
            former = [self._former(row, now) for row in self._before(key, owner)]
            self._sessions.journal.keep(former)
        if known != owner:
            self._sessions.journal.write(*self._belongs(key, owner))

    def trust(self, key: SessionKey) -> None:
        """A manager's word: what is saved is of whoever has the name, if nobody knows.

        Raises:
            StoreError: it could not be written.
        """
        if not self._owner(key):
            self._sessions.journal.write(*self._belongs(key, _WHOEVER_COMES))

    def left(self, key: SessionKey) -> None:
        """Its account was deleted: whoever has the name next claims what is saved.

        Raises:
            StoreError: it could not be written.
        """
        known = self._known(key) or {"owner": "", "since": 0.0}
        claim = {**known, "claimed": _WHOEVER_COMES}
        self._sessions.journal.write(*_replace(key, claim))

    def _before(self, key: SessionKey, owner: str) -> list[CheckpointRow]:
        """Checkpoints of that server that are not that account's."""
        return [
            row
            for row in self._sessions.journal.checkpoints(key)
            if row.info is not None
            and _is_anothers(row.info, owner)
            and row.keeping is not Keeping.TO_DELETE
        ]

    def _names_another(self, checkpoint: str, owner: str) -> bool:
        """Whether its manifest names another account; older agents wrote none."""
        row = self._sessions.journal.checkpoint(checkpoint)
        info = None if row is None else row.info
        return info is not None and info.account not in {"", owner}

    def claimed(self, key: SessionKey) -> str:
        """Another account of that name that wants to start it; empty: none."""
        known = self._known(key)
        return "" if known is None else str(known["claimed"])

    def hand_over(
        self, key: SessionKey, owner: str, *, fresh: bool, own: str = ""
    ) -> None:
        """Give the server to that account, with its checkpoints or without.

        Args:
            key: the server.
            owner: the account.
            fresh: the new account gets nothing of the former one's; its checkpoints are
                kept for a while, hidden, and what still runs is ended.
            own: the checkpoint that the Hub remembers of the new account's server: it
                is that account's, and the journal older than the account.

        Raises:
            StoreError: it could not be written; nothing is handed over.
        """
        sessions, now = self._sessions, self._sessions.clock.now()
        if fresh:
            rows = sessions.journal.checkpoints(key)
            kept = [row for row in rows if row.keeping is not Keeping.TO_DELETE]
            sessions.journal.keep([self._former(row, now) for row in kept])
            if sessions.deletions is not None and sessions.journal.session(key):
                spared = [own] if own else []
                sessions.deletions.order(key, "new account", _NEW, spared=spared)
            sessions.journal.keep([_found(row, now) for row in kept if row.id == own])
            table = schema.keeps
            mine = (table.c.user == key.user) & (table.c.server == key.server)
            sessions.journal.write(table.delete().where(mine))
        else:  # a program may have deleted the former one's user
            rows = sessions.journal.checkpoints(key)
            sessions.journal.keep(
                msgspec.structs.replace(row, expires=None)
                for row in rows
                if row.keeping is Keeping.CURRENT
            )
        sessions.journal.write(*self._belongs(key, owner))

    def _former(self, row: CheckpointRow, now: float) -> CheckpointRow:
        expires = (
            now + self._aside if row.keeping is not Keeping.FORMER else row.expires
        )
        return msgspec.structs.replace(
            row, keeping=Keeping.FORMER, changed=now, expires=expires
        )

    def _owner(self, key: SessionKey) -> str:
        """The account that owns the server; empty: nobody knows."""
        known = self._known(key)
        return "" if known is None else str(known["owner"])

    def _known(self, key: SessionKey) -> dict[Any, Any] | None:
        table = schema.owners
        query = table.select().where(schema.of_session(table, key))
        found = self._sessions.journal.read(query)
        return found[0] if found else None

    def _belongs(self, key: SessionKey, owner: str) -> list[Any]:
        since = self._sessions.clock.now()
        return _replace(key, {"owner": owner, "since": since, "claimed": ""})


def _found(row: CheckpointRow, now: float) -> CheckpointRow:
    """It is set aside without limit: the next start brings it back."""
    return msgspec.structs.replace(
        row, keeping=Keeping.ASIDE, changed=now, expires=None
    )


def _is_anothers(info: CheckpointInfo, owner: str) -> bool:
    """Whether it belongs to another account.

    Older agents wrote no account: then what is older than the account is another's.
    """
    return info.account != owner if info.account else info.created < _made(owner)


def _made(owner: str) -> float:
    """When an account was made, by its name (``hub/spawner/logins.py``); 0: unknown."""
    try:
        made = datetime.strptime(owner.partition(".")[2] + "Z", "%Y%m%dT%H%M%S%f%z")
    except ValueError:
        return 0.0
    return made.timestamp()


def _replace(key: SessionKey, values: dict[Any, Any]) -> list[Any]:
    table = schema.owners
    values = {**values, "user": key.user, "server": key.server}
    old = table.delete().where(schema.of_session(table, key))
    return [old, table.insert().values(**values)]
