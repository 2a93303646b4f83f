"""Collects what agent and Hub say, and keeps "no answer" apart from "nothing there".

Nothing is changed here, and no part that is down raises anything.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import HubState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import marks, phase
from jupyterhub_gpu_reclaim.controlplane.phase import Observed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey, Tree
    from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


T = TypeVar("T")
V = TypeVar("V", "Tree", "CheckpointInfo")

_log = logging.getLogger(__name__)

_OF_ONE_NODE = {Reason.NODE_SILENT, Reason.NODE_UNTRUSTED, Reason.ENDING_UNSEEN}


class ObservedState(NamedTuple):
    """All sessions as the parts see them now; None: no answer of that one."""

    trees: dict[SessionKey, tuple[Tree, ...]] | None
    saved: dict[SessionKey, tuple[CheckpointInfo, ...]] | None
    servers: dict[SessionKey, HubState] | None
    asked: float  #: before the first of them answered (monotonic)

    def keys(self) -> set[SessionKey]:
        return (self.trees or {}).keys() | (self.saved or {}).keys()

    def checkpoints(self) -> list[CheckpointInfo]:
        return [info for infos in (self.saved or {}).values() for info in infos]

    def session(self, key: SessionKey) -> Observed:
        servers = self.servers
        return Observed(
            trees=None if self.trees is None else self.trees.get(key, ()),
            saved=None if self.saved is None else self.saved.get(key, ()),
            hub=None if servers is None else servers.get(key, HubState.STOPPED),
        )


@dataclass(eq=False)
class Observer:
    sessions: Sessions
    deletions: Deletions
    _silent: set[str] = field(default_factory=set, init=False)
    #: when the store last answered (monotonic), if it did the last time
    _listed: float | None = field(default=None, init=False)
    #: the store's last answer; None: it has not answered this program
    _list: dict[SessionKey, tuple[CheckpointInfo, ...]] | None = field(
        default=None, init=False
    )

    async def observe_all(self, store_every: float) -> ObservedState:
        """Observe everything; the store's answer may be so many seconds old."""
        asked = self.sessions.clock.monotonic()
        trees, saved, servers = await asyncio.gather(
            self._ask("agent", self.sessions.agent.trees),
            self._stored(store_every),
            self._ask("Hub", self.sessions.hub.servers),
        )
        running = None if trees is None else _by_key(trees)
        return ObservedState(running, saved, servers, asked)

    def silent_parts(self) -> list[str]:
        return sorted(self._silent)

    async def _stored(
        self, every: float
    ) -> dict[SessionKey, tuple[CheckpointInfo, ...]] | None:
        now = self.sessions.clock.monotonic()
        if self._listed is not None and now - self._listed < every:
            return self._list
        for runtime in self.sessions.runtimes.values():
            runtime.deleted = frozenset()
            runtime.told = {}
        saved = await self._ask("agent's store", self.sessions.agent.checkpoints)
        self._listed = None if saved is None else now
        if saved is None:
            return None
        self._list = _by_key(in_order(saved))
        return self._list

    def is_listed(self, key: SessionKey) -> bool:
        """Whether the store was listed, and showed nothing that is newer."""
        if self._list is None:
            return False
        had = self.whole(key, Observed((), self._list.get(key, ()), None))
        return phase.is_current(self.sessions.row(key), had)

    def whole(self, key: SessionKey, observed: Observed) -> Observed:
        """Leave out what is deleted, add what the store does not show yet."""
        observed = self.deletions.living(key, observed)
        self.sessions.see(key, observed.saved or ())
        words = marks.said(self.sessions, key, observed.saved or ())
        return observed._replace(said=words)

    async def observe(self, key: SessionKey) -> Observed:
        trees, saved, hub = await asyncio.gather(
            self._ask("agent", lambda: self.sessions.agent.trees(key)),
            self._ask("agent's store", lambda: self.sessions.agent.checkpoints(key)),
            self._ask("Hub", lambda: self.sessions.hub.server(key)),
        )
        observed = Observed(
            trees=None if trees is None else tuple(trees),
            saved=None if saved is None else in_order(saved),
            hub=hub,
        )
        return self.whole(key, observed)

    async def _ask(self, whom: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask a part; None: no answer, which is logged once per silence."""
        try:
            value = await ask()
        except ReclaimError as error:
            if error.reason in _OF_ONE_NODE:
                return None  # one of many: the caller has logged it
            if whom not in self._silent:
                self._silent.add(whom)
                _log.warning("the %s does not answer: %s", whom, error)
            return None
        if whom in self._silent:
            self._silent.discard(whom)
            _log.info("the %s answers again", whom)
        return value


def in_order(infos: Iterable[CheckpointInfo]) -> tuple[CheckpointInfo, ...]:
    return tuple(sorted(infos, key=lambda info: info.stamp))


def _by_key(values: Iterable[V]) -> dict[SessionKey, tuple[V, ...]]:
    found: dict[SessionKey, list[V]] = {}
    for value in values:
        found.setdefault(value.key, []).append(value)
    return {key: tuple(mine) for key, mine in found.items()}
