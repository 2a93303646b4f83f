"""Samples every session of this node; a server's address is read only once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import TreeState
from jupyterhub_gpu_reclaim.common.node_status import CardStatus
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.jupyter.connection import is_started_as_kernel
from jupyterhub_gpu_reclaim.node.jupyter.server import address_of, read_login
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import Sample, Tree
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements
    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress
    from jupyterhub_gpu_reclaim.sampling.sampler import Sampler

_log = logging.getLogger(__name__)

#: States in which the server runs.
_RUNS = {TreeState.RUNNING, TreeState.NAPPING}
_LIVE = _RUNS | {TreeState.CAPTURING, TreeState.CAPTURED}
#: Pid and start time of a program.
_Name = tuple[int, int]
#: Programs of one server that are asked whether they are kernels, at each look.
MOST_ASKED = 512


class _Seen(NamedTuple):
    target: SampleTarget
    address: tuple[_Name, ServerAddress] | None
    kernels: list[_Name]


class TreeSampler:
    """Takes samples of sessions; the servers of stopped ones are not called."""

    def __init__(self, placements: Placements, sampler: Sampler) -> None:
        self._placements = placements
        self._sampler = sampler
        #: Of each server; replaced whole, so threads do no harm.
        self._addresses: dict[_Name, ServerAddress] = {}
        #: Programs that are kernels; likewise.
        self._kernels: frozenset[_Name] = frozenset()

    def close(self) -> None:
        self._sampler.close()

    async def samples(self, known: list[Tree]) -> list[Sample]:
        children = await asyncio.to_thread(processes.families)
        # At the same time: each may keep us waiting, for a second or so.
        looked = await asyncio.gather(
            *(
                asyncio.to_thread(self._watch, tree, children)
                for tree in known
                if tree.state in _LIVE
            )
        )
        seen = [one for one in looked if one is not None]
        self._addresses = dict(one.address for one in seen if one.address is not None)
        self._kernels = frozenset(name for one in seen for name in one.kernels)
        return await self._sampler.sample_all([one.target for one in seen])

    async def cards(self) -> list[CardStatus] | None:
        cards = await self._sampler.cards()
        if cards is None:
            return None
        names = CardStatus.__struct_fields__
        return [CardStatus(**{n: getattr(card, n) for n in names}) for card in cards]

    def _watch(self, tree: Tree, children: Mapping[int, Sequence[int]]) -> _Seen | None:
        try:
            session = self._placements.find(tree.incarnation, tree.pod)
            return self._see(tree, trees.inspect(session, children))
        except NotFound:
            return None
        except Exception:  # noqa: BLE001 whatever it is, it is one session's
            _log.exception("%s cannot be looked at", tree.key)
            return None

    def _see(self, tree: Tree, snapshot: Snapshot) -> _Seen | None:
        server = snapshot.server
        if server is None:
            return None
        name = (server.pid, server.start_time)
        # A program that has not yet become the server does not know its address.
        address = self._addresses.get(name) or find_address(server.pid, snapshot.init)
        kernels = find_kernels(snapshot, self._kernels)
        target = SampleTarget(
            incarnation=tree.incarnation,
            key=tree.key,
            pod=tree.pod,
            init_pid=snapshot.init.pid,
            root_pid=server.pid,
            pids=[process.pid for process in snapshot.processes],
            address=address,
            stopped=tree.state not in _RUNS,
            kernels=[kernel.pid for kernel in kernels],
        )
        names = [(kernel.pid, kernel.start_time) for kernel in kernels]
        return _Seen(target, None if address is None else (name, address), names)


def find_kernels(snapshot: Snapshot, known: Collection[_Name] = ()) -> list[Process]:
    """The kernels that the session's server has started, the known ones among them."""
    server, silent, asked = snapshot.server, False, 0
    found = []
    for program in snapshot.processes:
        if server is None or program.ppid != server.pid:
            continue
        is_kernel = (program.pid, program.start_time) in known
        if not is_kernel and not silent and asked < MOST_ASKED:
            asked += 1
            try:
                is_kernel = is_started_as_kernel(program.pid)
            except OSError as error:
                # This user's programs keep us waiting: no more of them are asked.
                silent = isinstance(error, TimeoutError)
        if is_kernel:
            found.append(program)
    return found


def find_address(server_pid: int, init: Process) -> ServerAddress | None:
    """Address of a Jupyter server; None if its environment does not say."""
    try:
        login = read_login(server_pid)
    except OSError:
        return None
    return address_of(login, init.pid, init.start_time) if login.api_token else None
