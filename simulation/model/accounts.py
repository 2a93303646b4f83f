"""Whose it is: the product's own rules on a state of the model.

``owners`` and ``Deletions`` want the rows of ``Sessions`` and a journal.
:class:`Desk` is as much of both as they use, and of the agent: what they write becomes
a new state.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder, Cancel, Discard, Kill
from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import AuditLine, Phase, Placement, SessionKey
from jupyterhub_gpu_reclaim.controlplane import owners
from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    Keeping,
    SessionRow,
)
from simulation.model import session as model

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Tree
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed
    from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
    from simulation.model.session import State

#: The name that the Hub gives a renamed user.
EVE = SessionKey("eve")


class Desk:
    """Sessions, journal and agent, on a state of the model.

    Args:
        state: it is replaced with each change.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.journal = self
        self.clock = SimpleNamespace(now=lambda: 0.0)
        self.settings = model.SETTINGS
        self.agent = self
        self.deletions = Deletions(self)  # type: ignore[arg-type]
        self.deletions._read_in = state.term
        order = state.row.deletion
        self.deletions._orders = {} if order is None else {order.key: order}

    @property
    def term(self) -> int:
        return self.state.term

    def settled(self) -> State:
        """The state, with what is to be deleted."""
        order = self.deletions.pending(model.KEY)
        return self.state._replace(row=self.state.row._replace(deletion=order))

    # --- sessions and journal
    def row(self, key: SessionKey) -> SessionRow:
        return model._row(self.state.row) if key == model.KEY else SessionRow(key=key)

    def session(self, key: SessionKey) -> SessionRow | None:
        row = self.row(key)
        return row if row.since else None

    def sessions(self) -> list[SessionRow]:
        row = self.session(model.KEY)
        return [row] if row else []

    def checkpoints(self, key: SessionKey | None = None) -> Any:
        """The journal's rows of a session; without a key, the agent's list."""
        return _listed(self.state) if key is None else list(model._kept(self.state.row))

    def checkpoint(self, checkpoint: str) -> CheckpointRow | None:
        rows = model._kept(self.state.row)
        return next((row for row in rows if row.id == checkpoint), None)

    def update(
        self,
        key: SessionKey,
        line: AuditLine | None = None,
        checkpoints: Iterable[CheckpointRow] = (),
        **changes: Any,
    ) -> None:
        del line
        if key != model.KEY:
            return
        self.keep(key, checkpoints)
        row = self.state.row
        account = changes.get("account", model._account(row.account))
        claimed = changes.get("claimed", row.claimed)
        row = row._replace(account=int(account or 0), claimed=claimed)
        self.state = self.state._replace(row=row)

    def keep(self, key: SessionKey, rows: Iterable[CheckpointRow]) -> None:
        del key
        for each in rows:
            row, number = self.state.row, int(each.id)
            hidden, doomed = row.hidden - {number}, row.doomed - {number}
            if each.keeping is not Keeping.TO_DELETE and each.info.aside:
                hidden |= {number}
            if each.keeping is Keeping.TO_DELETE:
                doomed |= {number}
            row = row._replace(hidden=hidden, doomed=doomed)
            self.state = self.state._replace(row=row)

    def drop(self, checkpoint: str) -> None:
        row, number = self.state.row, int(checkpoint)
        known = frozenset(one for one in row.known if one.id != number)
        row = row._replace(known=known, doomed=row.doomed - {number})
        self.state = self.state._replace(row=row)

    def remove(
        self,
        key: SessionKey,
        line: AuditLine,
        checkpoints: Iterable[CheckpointRow] = (),
        also: Iterable[Any] = (),
    ) -> None:
        row = self.state.row
        bare = model.Row(
            Phase.STOPPED, known=row.known, hidden=row.hidden, doomed=row.doomed
        )
        self.state = self.state._replace(row=bare)
        self.keep(key, checkpoints)

    def write(self, *statements: Any) -> None:
        """Orders stand in ``settled``; the rest is about nothing of the model."""

    def notes(self, kind: NoteKind, of: type[float]) -> dict[str, float]:
        return {}

    def note(self, kind: NoteKind, subject: str, value: float) -> None:
        """Nobody starts fresh here under another name."""

    def audit_line(self, key: SessionKey, who: str, what: str, *more: str) -> AuditLine:
        return AuditLine(at=0.0, key=key, who=who, what=what)

    def highest_generation(self, key: SessionKey) -> int:
        known = [row.info.generation for row in self.checkpoints(key)]
        given = model._generation(self.state.term, self.state.next - 1)
        return max([self.row(key).stamp[1], given, *known])

    # --- the agent
    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        del key
        return [model._seen(tree) for tree in self.state.trees]

    async def order(self, subject: str, order: AgentOrder) -> None:
        tree = self.state.tree(int(subject))
        if isinstance(order, Cancel) and tree is not None:
            self.state = self.state.but(tree.going_on())
        elif isinstance(order, Kill):
            law = "accounts: the order to delete ends what is not the deleted one's"
            if tree is not None and tree.account == self.state.owner:
                raise model.Broken(law)
            trees = (one for one in self.state.trees if one.inc != int(subject))
            self.state = self.state._replace(trees=tuple(trees))
        elif isinstance(order, Discard):
            saved = self.state.saved(int(subject))
            if saved is not None and saved.account == self.state.owner:
                raise model.Broken("accounts: another's order deletes a checkpoint")
            self.state = self.state.deleted(int(subject))


class _AgentOf(Desk):
    """The same, where the agent is asked for what it has of a session."""

    async def checkpoints(self, key: SessionKey | None = None) -> Any:
        del key
        return _listed(self.state)


def _listed(state: State) -> list[CheckpointInfo]:
    return list(model._list(state.store))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What it returns; none of it waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError


def placement(state: State, key: SessionKey = model.KEY) -> Placement:
    """How the Hub's spawner asks for a start."""
    return Placement(
        key=key,
        incarnation=str(state.next),
        owner=model._account(state.owner),
        checkpoint=str(state.hub_saved or ""),
        former=f"s{state.owner}" if state.hub_inc else "",
        remembered=bool(state.hub_inc),
    )


def check(state: State) -> tuple[State, bool]:
    """The product's check of whose it is; the state, and whether a start may go on."""
    desk = Desk(state)
    try:
        owners.check(desk, placement(state))  # type: ignore[arg-type]
    except Refused:
        return desk.settled(), False
    return desk.settled(), True


def joins(state: State, tree: Tree) -> bool:
    try:
        owners.refuse_anothers(Desk(state), tree, placement(state))  # type: ignore[arg-type]
    except Refused:
        return False
    return True


def noted(state: State) -> State:
    """The server belongs to who starts it."""
    desk = Desk(state)
    owners.note(desk, placement(state))  # type: ignore[arg-type]
    return desk.settled()


def ordered(state: State) -> State:
    desk = Desk(state)
    desk.deletions.take(
        Deletion(
            user=model.KEY.user,
            server=model.KEY.server,
            account=model._account(state.owner),
            sessions=(f"s{state.owner}",),
        )
    )
    return desk.settled()


def living(state: State, observed: Observed) -> Observed:
    if state.row.deletion is None:
        return observed
    return Desk(state).deletions.living(model.KEY, observed)


def carried_out(state: State) -> State:
    """What is left of a deleted session is ended and deleted."""
    desk = Desk(state)
    agent = _AgentOf(state)
    desk.agent = agent
    run(desk.deletions.carry_out(model.KEY))
    done = desk.settled()
    return done._replace(trees=agent.state.trees, store=agent.state.store)


def told_of_another_name(state: State) -> bool:
    """Whether a renamed user is told, before anything is started, what is there."""
    desk = Desk(state)
    desk.agent = _AgentOf(state)
    asked = placement(state, EVE)
    try:
        run(owners.check_names(desk, asked))  # type: ignore[arg-type]
    except Refused:
        return True
    return False
