"""Marks: a person's word about a checkpoint, kept beside it in the store.

The journal is the wish, the mark its copy, so that a lost journal costs history and no
word. Nothing is queued: a difference is told to the agent, until a list of the store
shows it. A decision waits in the journal while the store is away.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.controlplane import phase
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import (
        Aside,
        CheckpointInfo,
        SessionKey,
    )
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

_log = logging.getLogger(__name__)

#: Most words that one tick tells; the rest comes with the next.
PER_TICK = 8
_ASIDE = {Keeping.ASIDE, Keeping.FORMER}


class Marks:
    """Keeps the marks in the store as the journal has it.

    Args:
        sessions: where the journal is.
        agent: writes them.
    """

    def __init__(self, sessions: Sessions, agent: Agent) -> None:
        self._sessions = sessions
        self._agent = agent
        #: numbers of the service's words in its term, so that a late one does not count
        self._words = itertools.count(1)
        self._last = ""  #: the checkpoint tried last: the others come first

    async def settle(self, saved: Iterable[CheckpointInfo]) -> None:
        """Tell some words that the store does not show; never raises ``ReclaimError``.

        As with deletions, only for sessions that were found to be as the journal says.
        What was chosen comes after what was set aside for it: the later word counts.

        Args:
            saved: the checkpoints, as the store was last listed.
        """
        due = self._due(saved)
        turn = sorted(due, key=lambda row: (row.id <= self._last, row.id))
        turn.sort(key=lambda row: _wish(row) is None)
        refused: set[SessionKey] = set()
        for row in turn[:PER_TICK]:
            if row.key in refused and _wish(row) is None:
                continue
            self._last = row.id
            try:
                await self._tell(row)
            except Unreachable as error:
                _log.debug("%s: mark of %s: %s", row.key, row.id, error)
                return
            except ReclaimError as error:
                refused.add(row.key)
                _log.info("%s: mark of %s not written: %s", row.key, row.id, error)

    def _due(self, saved: Iterable[CheckpointInfo]) -> list[CheckpointRow]:
        by_key: dict[SessionKey, list[CheckpointInfo]] = {}
        for info in saved:
            by_key.setdefault(info.key, []).append(info)
        due = []
        for key, infos in by_key.items():
            runtime = self._sessions.runtime(key)
            if runtime.compared:
                due += untold(self._sessions, key, infos, runtime.told)
        return due

    async def _tell(self, row: CheckpointRow) -> None:
        wish = _wish(row)
        await self._agent.lay_aside(
            row.id,
            None if wish is None else wish.until,
            aside=wish is not None,
            word=next(self._words),
        )
        self._sessions.runtime(row.key).told[row.id] = wish


def said(
    sessions: Sessions, key: SessionKey, saved: Collection[CheckpointInfo]
) -> dict[str, bool]:
    """People's words that the store does not show yet: ``Observed.said``."""
    words = {row.id: _wish(row) is not None for row in untold(sessions, key, saved, {})}
    rows = sessions.journal.checkpoints(key)
    gone = {row.id for row in rows if row.keeping is Keeping.TO_DELETE}
    runtime = sessions.runtimes.get(key)
    gone |= runtime.deleted if runtime is not None else frozenset()
    return words | dict.fromkeys(gone, True)


def untold(
    sessions: Sessions,
    key: SessionKey,
    saved: Collection[CheckpointInfo],
    told: Mapping[str, Aside | None],
) -> list[CheckpointRow]:
    """Return the rows whose words the store does not show.

    What a session goes on from is said to be chosen where something newer of it was set
    aside: the store alone would not tell.

    Args:
        sessions: where the journal is.
        key: the session.
        saved: its checkpoints, as the store was last listed.
        told: the words told since.
    """
    rows = {row.id: row for row in sessions.journal.checkpoints(key)}
    there = [(info, rows[info.id]) for info in saved if info.id in rows]
    due = {
        info.id: row
        for info, row in there
        if _is_decided(row) and told.get(info.id, info.aside) != _wish(row)
    }
    said = {row.id: _wish(row) is not None for row in due.values()}
    goes_on_from = sessions.row(key).checkpoint
    chosen = [
        row
        for info, row in there
        if info.id == goes_on_from and info.id not in {*due, *told}
        if _is_decided(row) and phase.is_left(info, saved, said)
    ]
    return [*due.values(), *chosen]


def _is_decided(row: CheckpointRow) -> bool:
    """Whether there is a word: the checkpoint is wanted, or set aside by a person.

    A checkpoint that the service has set aside by itself was only passed over.
    """
    return row.keeping not in {*_ASIDE, Keeping.TO_DELETE} or _wish(row) is not None


def _wish(row: CheckpointRow) -> Aside | None:
    aside = row.info.aside if row.info is not None else None
    return aside if row.keeping in _ASIDE else None
