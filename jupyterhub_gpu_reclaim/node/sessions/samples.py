"""Samples every session of this node.

It turns trees into what ``sampling.sampler`` can sample, and caches each server's
address, so that it is read from the program only once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import TreeState
from jupyterhub_gpu_reclaim.common.node_status import CardStatus
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.jupyter.server import read_login
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler, SampleTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import Sample, Tree
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements

#: Its server runs.
_RUNS = {TreeState.RUNNING, TreeState.NAPPING}
_LIVE = _RUNS | {TreeState.CAPTURING, TreeState.CAPTURED}
_Name = tuple[int, int]


class TreeSampler:
    """Takes samples of sessions; the servers of stopped ones are not called."""

    def __init__(self, placements: Placements, sampler: Sampler) -> None:
        self._placements = placements
        self._sampler = sampler
        #: By pid and start time of the program; replaced whole, so threads do no harm.
        self._addresses: dict[_Name, ServerAddress] = {}

    async def samples(self, known: list[Tree]) -> list[Sample]:
        """One sample of every session that has programs in it."""
        watched = await asyncio.to_thread(self._watched, known)
        return await self._sampler.sample_all(watched)

    async def cards(self) -> list[CardStatus] | None:
        """The cards of this machine, as of some seconds ago; None: no answer."""
        cards = await self._sampler.cards()
        if cards is None:
            return None
        return [
            CardStatus(
                uuid=card.uuid,
                name=card.name,
                total=card.total,
                free=card.free,
                busy_percent=card.busy_percent,
                divided=card.divided,
            )
            for card in cards
        ]

    def _watched(self, known: list[Tree]) -> list[SampleTarget]:
        addresses: dict[_Name, ServerAddress] = {}
        children = processes.families()
        found = [
            watched
            for tree in known
            if tree.state in _LIVE
            and (watched := self._watch(tree, addresses, children)) is not None
        ]
        self._addresses = addresses
        return found

    def _watch(
        self,
        tree: Tree,
        addresses: dict[_Name, ServerAddress],
        children: Mapping[int, Sequence[int]],
    ) -> SampleTarget | None:
        try:
            session = self._placements.find(tree.incarnation, tree.pod)
            snapshot = trees.inspect(session, children)
        except NotFound:
            return None
        server = snapshot.server
        if server is None:
            return None
        name = (server.pid, server.start_time)
        # A program that has not yet become the server does not know its address.
        address = self._addresses.get(name) or address_of(server.pid, snapshot.init)
        if address is not None:
            addresses[name] = address
        return SampleTarget(
            incarnation=tree.incarnation,
            key=tree.key,
            pod=tree.pod,
            init_pid=snapshot.init.pid,
            root_pid=server.pid,
            pids=[process.pid for process in snapshot.processes],
            address=address,
            stopped=tree.state not in _RUNS,
        )


def address_of(server_pid: int, init: Process) -> ServerAddress | None:
    """Where that program's server answers; None where its environment does not say."""
    try:
        login = read_login(server_pid)
    except OSError:
        return None
    if not login.port or not login.token:
        return None
    return ServerAddress(
        login.port, login.prefix, login.token, init.pid, init.start_time
    )
