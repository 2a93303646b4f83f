"""Handles users and servers that the Hub has renamed while their session was there.

JupyterHub allows it; programs cannot follow, since their name is in their paths, their
login and what was saved of them. So a session stays under its former name until that is
given back. The Hub's word under the new name counts for the former one, and nothing is
started beside it in silence: the user is refused (``renamed``), and may choose to start
fresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.sessions import owners

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


class Renames:
    """Finds sessions under another name than the Hub's.

    Args:
        sessions: the rows.
        agent: the agents.
    """

    def __init__(self, sessions: Sessions, agent: Agent) -> None:
        self._sessions = sessions
        self._agent = agent

    def row_of(self, placement: Placement) -> SessionRow:
        """Return a session's row; of a user renamed while it ran, the former name's."""
        row = self._sessions.row(placement.key)
        if row.incarnation == placement.incarnation:
            return row
        for each in self._sessions.journal.sessions():
            if each.incarnation == placement.incarnation:
                return each
        return row

    async def names_of(self, *ids: str) -> set[SessionKey]:
        """Return the names by which the agents, or else the store, know a session.

        Args:
            *ids: of the session, of an incarnation or of a checkpoint of it; empty ones
                are not known.

        Raises:
            Unreachable, StoreError: one that has to be asked does not answer.
        """
        known = set(ids) - {""}
        trees = [
            tree.key
            for tree in await self._agent.trees()
            if known & {tree.session, tree.incarnation}
            and tree.state is not TreeState.GONE
        ]
        if trees:
            return set(trees)
        saved = await self._agent.checkpoints()
        current = (x for x in saved if x.id in known or x.aside is None)
        return {x.key for x in current if known & {x.id, x.session}}

    async def check(self, placement: Placement) -> None:
        """Check that its user has no session under a former name.

        Asked before a cold start, and where nobody knows what the Hub remembers.

        Raises:
            Refused: ``renamed``, unless the user has said to start fresh.
            Unreachable, StoreError: nobody can say so now.
        """
        mine = self._sessions.row(placement.key)
        if placement.former in _ids_of(mine) or mine.phase is not Phase.STOPPED:
            return
        for key in sorted(await self._former_names(mine, placement) - {mine.key}):
            there = self._sessions.row(key)
            named = {placement.former, placement.checkpoint, *_ids_of(there)} - {""}
            if mine.dismissed not in named:
                raise self._refused(key, placement)

    def dismiss(self, key: SessionKey, by: str) -> bool:
        """Make the next start of a refused session cold; return whether it was refused.

        Anything under the former name stays as it is.
        """
        runtime = self._sessions.runtime(key)
        named = runtime.of_another_name
        if not named or self._sessions.row(key).phase is not Phase.STOPPED:
            return False
        line = self._sessions.audit_line(key, by, "start fresh")
        self._sessions.update(key, line, dismissed=named, failure=None)
        runtime.of_another_name = ""
        return True

    async def _former_names(
        self, mine: SessionRow, placement: Placement
    ) -> set[SessionKey]:
        """Return the names of what the Hub remembers, or of the account's leftovers."""
        rows = self._sessions.journal.sessions()
        there = {row.key: row for row in rows if row.phase is not Phase.STOPPED}
        if hubs := {placement.former, placement.checkpoint} - {""}:
            found = {key for key, row in there.items() if hubs & _ids_of(row)}
            found = found or await self.names_of(*hubs)
            if found:
                return found
        if mine.since or not placement.owner:  # something was begun under this name
            return set()
        return {
            key
            for key, row in there.items()
            if key.server == placement.key.server
            and owners.account_of(self._sessions, row) == placement.owner
        }

    def _refused(self, there: SessionKey, placement: Placement) -> Refused:
        key = placement.key
        error = Refused(Reason.RENAMED, there=there, here=key)
        left = min(_ids_of(self._sessions.row(there)), default=placement.former)
        self._sessions.runtime(key).of_another_name = placement.checkpoint or left
        self._sessions.update(key, failure=codec.failure_of(error))
        return error


def _ids_of(row: SessionRow) -> set[str]:
    """Return the ids that a Hub may remember of a row's session."""
    return {row.checkpoint, row.session, row.incarnation} - {""}
