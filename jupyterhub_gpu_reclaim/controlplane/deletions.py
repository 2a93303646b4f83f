"""Deleted servers: ordered once, repeated until nothing is left.

The order is written in the transaction that removes the session's row, and stays until
agent and store have been seen to hold nothing of the session. Until then, what is left
is hidden. Old and new are told apart by session and incarnation; what is of another
account than the deleted one is never meant. A checkpoint that the journal does not know
is old if its stamp is not above the order's: the highest the session can have had.

What waits as a file is taken up before anything that was seen or reported is written
into the journal: it may be a new session of a deleted name.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import deletion_orders
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey, TreeState
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import Keeping
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
    from jupyterhub_gpu_reclaim.common.models import AuditLine, CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

_DELETED = "The server was deleted."
#: Seconds for which a taken order is remembered; no call repeats it later.
_KNOWN = 7 * 86400.0


class DeletionOrder(msgspec.Struct, frozen=True, kw_only=True):
    key: SessionKey
    stamp: tuple[int, int]  #: the highest that the deleted session can have had
    names: frozenset[str]  #: sessions and incarnations known to be deleted
    accounts: frozenset[str]  #: accounts that were deleted; empty: not told

    def concerns(self, account: str) -> bool:
        return not account or not self.accounts or account in self.accounts


@dataclass(eq=False)
class Deletions:
    sessions: Sessions
    folder: Path | None = None
    _orders: dict[SessionKey, DeletionOrder] | None = field(default=None, init=False)
    #: the term of the reading; a higher one raises some orders
    _read_in: int = field(default=0, init=False)

    # --- orders
    def take_up(self) -> None:
        """Take over the spawner's order files; needed before a row is changed.

        Raises:
            StoreError: the journal cannot be written; the rest is taken up later.
        """
        if self.folder is None:
            return
        try:
            for path, deletion in deletion_orders.pending(self.folder):
                self._take(path.stem, deletion)
                deletion_orders.remove(path)
        except OSError as error:
            _log.warning("orders to delete cannot be read: %s", error)

    def take(self, deletion: Deletion) -> None:
        """Order what the spawner tells, unless that order was taken up before."""
        self.take_up()
        self._take(deletion.order, deletion)

    def _take(self, name: str, deletion: Deletion) -> None:
        """Take an order once: told again, there may be a new session of that name."""
        if not name:
            self._write_order(deletion)
        elif self.sessions.journal.noted(NoteKind.DELETION, name) is None:
            now = self.sessions.clock.now()
            taken = schema.note(NoteKind.DELETION, name, now)
            self._write_order(deletion, also=taken)

    def forget_old(self) -> None:
        journal, before = self.sessions.journal, self.sessions.clock.now() - _KNOWN
        noted = journal.notes(NoteKind.DELETION, float).items()
        old = [name for name, at in noted if at < before and not self._has_file(name)]
        journal.forget_notes(NoteKind.DELETION, *old)

    def _has_file(self, name: str) -> bool:
        return self.folder is not None and deletion_orders.is_left(self.folder, name)

    def _write_order(self, deletion: Deletion, also: Iterable[Any] = ()) -> None:
        sessions, key = self.sessions, deletion.key
        row = sessions.row(key)
        order = self._new_order(deletion, row)
        line = self._line(order, "forget", _DELETED)
        to_delete = [each.kept(Keeping.TO_DELETE) for each in self._rows_meant(order)]
        written = schema.note(NoteKind.DELETED, key.path, order)
        if order.concerns(row.account):
            sessions.remove(key, line, to_delete, [*written, *also])
        else:  # the session of somebody who has had the name before
            sessions.keep(key, to_delete)
            sessions.journal.write(*schema.insert_audit(line), *written, *also)
        self._orders_by_key()[key] = order

    def _line(self, order: DeletionOrder, what: str, message: str) -> AuditLine | None:
        """Make a line for the audit; None: nobody has known anything of that name."""
        line = self.sessions.audit_line(order.key, SERVICE, what, message)
        return line if order.names else None

    def _new_order(self, deletion: Deletion, row: SessionRow) -> DeletionOrder:
        highest = self.sessions.highest_generation(row.key)
        order = DeletionOrder(
            key=row.key,
            stamp=(self.sessions.journal.term, highest),
            names=frozenset(deletion.sessions),
            accounts=frozenset({deletion.account} - {""}),
        )
        names = order.names | {r.info.incarnation for r in self._rows_meant(order)}
        if order.concerns(row.account):
            names |= {row.incarnation}
        accounts, former = order.accounts, self.pending(row.key)
        if former is not None:
            names |= former.names
            told = accounts and former.accounts
            accounts = accounts | former.accounts if told else frozenset()
        return msgspec.structs.replace(order, names=names - {""}, accounts=accounts)

    def _rows_meant(self, order: DeletionOrder) -> list[CheckpointRow]:
        rows = self.sessions.journal.checkpoints(order.key)
        return [row for row in rows if order.concerns(row.info.account)]

    def pending(self, key: SessionKey) -> DeletionOrder | None:
        return self._orders_by_key().get(key)

    def pending_keys(self) -> set[SessionKey]:
        return set(self._orders_by_key())

    def _orders_by_key(self) -> dict[SessionKey, DeletionOrder]:
        if self._orders is None or self._read_in != self.sessions.journal.term:
            self._read_in = self.sessions.journal.term
            journal = self.sessions.journal
            found = journal.notes(NoteKind.DELETED, DeletionOrder)
            self._orders = {order.key: order for order in found.values()}
        return self._orders

    # --- old or new
    def living(self, key: SessionKey, observed: Observed) -> Observed:
        """Return the observed state without what is to be deleted.

        Read the row again after it: orders given meanwhile are taken over.

        Raises:
            StoreError: see ``take_up``.
        """
        self.take_up()
        order = self.pending(key)
        if order is None:
            return observed
        trees, saved = observed.trees, observed.saved
        if trees is not None:
            trees = tuple(tree for tree in trees if not self._is_old(order, tree))
        if saved is not None:
            saved = tuple(info for info in saved if not self._is_saved(order, info))
        return observed._replace(trees=trees, saved=saved)

    def _is_old(self, order: DeletionOrder, tree: Tree) -> bool:
        """Whether a tree belongs to the deleted session.

        An unknown tree that runs may have been started while no service was there.
        """
        mine = tree.incarnation == self.sessions.row(order.key).incarnation
        if mine or not order.concerns(tree.account):
            return False
        new = tree.runs or tree.state in {TreeState.HOLDING, TreeState.UNKNOWN}
        return bool({tree.session, tree.incarnation} & order.names) or not new

    def _is_saved(self, order: DeletionOrder, info: CheckpointInfo) -> bool:
        """Whether a checkpoint belongs to the deleted session.

        Above the order's stamp, it may be what the next session was saved as since.
        """
        row = self.sessions.journal.checkpoint(info.id)
        if row is not None:
            return row.keeping is Keeping.TO_DELETE
        mine = info.incarnation == self.sessions.row(order.key).incarnation
        if mine or not order.concerns(info.account):
            return False
        known = {info.session, info.incarnation} & order.names
        return bool(known) or info.stamp <= order.stamp

    # --- carrying out
    async def carry_out(self, key: SessionKey) -> bool:
        """End and delete what is left; returns whether an order is still pending.

        Raises:
            ReclaimError: something does not answer; the rest is for the next time.
        """
        order = self.pending(key)
        if order is None:
            return False
        trees = await self.sessions.agent.trees(key)
        left = [tree for tree in trees if self._is_old(order, tree)]
        for tree in left:
            await self._end_tree(tree)
        saved = await self.sessions.agent.checkpoints(key)
        if self.pending(key) is not order:
            return True  # ordered anew, or raised with a term that the store knows
        to_delete = {info.id for info in saved if self._is_saved(order, info)}
        for row in self.sessions.journal.checkpoints(key):
            if row.keeping is Keeping.TO_DELETE:
                to_delete.add(row.id)
        if (left or to_delete) and not order.names:  # others know of it
            names = frozenset(tree.incarnation for tree in left) | to_delete
            order = msgspec.structs.replace(order, names=names)
            self._orders_by_key()[key] = order
            line = self._line(order, "forget", _DELETED)
            self.sessions.journal.write(*schema.insert_audit(line))
        for checkpoint in sorted(to_delete):
            await self.sessions.agent.order(checkpoint, orders.Discard())
            self.sessions.journal.drop(checkpoint)
            _log.info("%s: checkpoint %s deleted (forgotten)", key, checkpoint)
        if left or to_delete or self.pending(key) is not order:
            return True  # done is what was looked at and found empty
        self._note_done(order)
        return False

    async def _end_tree(self, tree: Tree) -> None:
        try:
            if tree.state is TreeState.CAPTURING:
                await self.sessions.agent.order(tree.incarnation, orders.Cancel())
            else:
                await self.sessions.agent.order(tree.incarnation, orders.Kill())
        except NotFound:
            return
        _log.info("%s: what is left of a deleted session is ended", tree.key)

    def _note_done(self, order: DeletionOrder) -> None:
        message = "Nothing of the deleted server is left."
        line = self._line(order, "forgotten", message)
        forgotten = schema.forget_notes(NoteKind.DELETED, order.key.path)
        self.sessions.journal.write(*schema.insert_audit(line), *forgotten)
        self._orders_by_key().pop(order.key, None)
