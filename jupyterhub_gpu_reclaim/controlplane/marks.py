"""Marks: what is said of a checkpoint, kept beside it in the store.

That it is set aside, or chosen, is a person's word; that a session has come back from
it, and gone on, is what has happened since. The journal is the wish, the mark its copy,
so that a lost journal costs history and no word. Nothing is queued: a difference is
told to the agent, until a list of the store shows it. What is to be said waits in the
journal while the store is away, and nothing waits for it. A name is told at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import Aside, Mark
from jupyterhub_gpu_reclaim.controlplane import phase
from jupyterhub_gpu_reclaim.controlplane.session import Keeping

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

#: Most words that one tick tells; the rest comes with the next.
PER_TICK = 8


class _Word(NamedTuple):
    key: SessionKey
    checkpoint: str
    said: Mark


class Marks:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._last = ""  #: the checkpoint tried last: the others come first

    async def settle(self, saved: Iterable[CheckpointInfo]) -> None:
        """Tell some words that the store does not show; never raises ``ReclaimError``.

        As with deletions, only for sessions that were found to be as the journal says.
        What was chosen comes after what was set aside for it: the later word counts.
        Returns come last.
        """
        turn = sorted(self._due(saved), key=lambda word: word.checkpoint)
        turn.sort(key=lambda word: (_rank(word), word.checkpoint <= self._last))
        refused: set[SessionKey] = set()
        for word in turn[:PER_TICK]:
            key, checkpoint, said = word
            if key in refused and said.aside is None:
                continue
            self._last = checkpoint
            try:
                await tell(self._sessions, key, checkpoint, said)
            except Unreachable as error:
                _log.debug("%s: mark of %s: %s", key, checkpoint, error)
                return
            except ReclaimError as error:
                refused.add(key)
                _log.info("%s: mark of %s not written: %s", key, checkpoint, error)

    def _due(self, saved: Iterable[CheckpointInfo]) -> list[_Word]:
        by_key: dict[SessionKey, list[CheckpointInfo]] = {}
        for info in saved:
            by_key.setdefault(info.key, []).append(info)
        due = []
        for key, infos in by_key.items():
            runtime = self._sessions.runtime(key)
            if runtime.compared:
                words = untold(self._sessions, key, infos, runtime.told)
                due += [_Word(key, *word) for word in words.items()]
        return due


async def tell(
    sessions: Sessions, key: SessionKey, checkpoint: str, said: Mark
) -> None:
    order = orders.Mark(said, next(sessions.words))
    await sessions.agent.order(checkpoint, order)
    sessions.runtime(key).told[checkpoint] = said


def _rank(word: _Word) -> tuple[bool, bool]:
    return word.said.aside is None, word.said.gone_on is not None


def said(
    sessions: Sessions, key: SessionKey, saved: Collection[CheckpointInfo]
) -> dict[str, Mark]:
    words = untold(sessions, key, saved, {})
    rows = sessions.journal.checkpoints(key)
    gone = {row.id for row in rows if row.keeping is Keeping.TO_DELETE}
    gone |= sessions.runtime(key).deleted
    return words | dict.fromkeys(gone, Mark(aside=Aside(until=None)))


def untold(
    sessions: Sessions,
    key: SessionKey,
    saved: Collection[CheckpointInfo],
    told: Mapping[str, Mark],
) -> dict[str, Mark]:
    """Return the words that the store does not show, by checkpoint.

    What a session goes on from is said to be chosen where something newer of it was set
    aside: the store alone would not tell. That it has come back is said of nothing
    else: told late, that would count as a choice after what was set aside since.
    """
    rows = {row.id: row for row in sessions.journal.checkpoints(key)}
    current = sessions.row(key).checkpoint
    wishes = [
        (info, _wish(rows[info.id], current))
        for info in saved
        if info.id in rows and _is_decided(rows[info.id])
    ]
    due = {
        info.id: said
        for info, said in wishes
        if _is_new(said, told.get(info.id, info.mark))
    }
    chosen = {
        info.id: said
        for info, said in wishes
        if info.id == current and info.id not in {*due, *told}
        if phase.is_left(info, saved, due)
    }
    return due | chosen


def _is_decided(row: CheckpointRow) -> bool:
    """Whether its session is in it, or a person has set it aside."""
    needed = row.keeping in {Keeping.CURRENT, Keeping.SUPERSEDED}
    aside = row.info.aside is not None and row.keeping is not Keeping.TO_DELETE
    return needed or aside


def _is_new(said: Mark, shown: Mark) -> bool:
    """Whether the store lacks that; a return that the journal has missed stays."""
    return said.aside != shown.aside or said.gone_on not in {None, shown.gone_on}


def _wish(row: CheckpointRow, current: str) -> Mark:
    gone_on = row.info.gone_on if row.id == current else None
    return Mark(aside=row.info.aside, gone_on=gone_on, name=row.name)
