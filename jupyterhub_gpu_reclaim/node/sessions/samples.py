"""Samples every session of this node."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import TreeState
from jupyterhub_gpu_reclaim.common.node_status import CardStatus
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.jupyter.connection import is_started_as_kernel
from jupyterhub_gpu_reclaim.node.jupyter.server import find_address
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import Sample, Tree
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.sampling.sampler import Sampler

_log = logging.getLogger(__name__)

#: States in which the server runs.
_RUNS = {TreeState.RUNNING, TreeState.NAPPING}
_LIVE = _RUNS | {TreeState.CAPTURING, TreeState.CAPTURED}
#: Programs of one server that are asked whether they are kernels, at each look.
MOST_ASKED = 512


class TreeSampler:
    """Takes samples of sessions; the servers of stopped ones are not called."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    async def samples(self, known: list[tuple[Session, Tree]]) -> list[Sample]:
        children = await asyncio.to_thread(processes.families)
        # At the same time: each may keep us waiting, for a second or so.
        looked = await asyncio.gather(
            *(
                asyncio.to_thread(_watch, session, tree, children)
                for session, tree in known
                if tree.state in _LIVE
            )
        )
        targets = [target for target in looked if target is not None]
        return await self._sampler.sample_all(targets)

    async def cards(self) -> list[CardStatus] | None:
        cards = await self._sampler.cards()
        if cards is None:
            return None
        names = CardStatus.__struct_fields__
        return [CardStatus(**{n: getattr(card, n) for n in names}) for card in cards]


def _watch(
    session: Session, tree: Tree, children: Mapping[int, Sequence[int]]
) -> SampleTarget | None:
    try:
        snapshot = trees.inspect(session, children)
        server = snapshot.server
        if server is None:
            return None
        address = find_address(session, server.pid)
        return SampleTarget(
            incarnation=tree.incarnation,
            key=tree.key,
            pod=tree.pod,
            init_pid=snapshot.init.pid,
            root_pid=server.pid,
            pids=[process.pid for process in snapshot.processes],
            # A program that has not yet become the server does not know it.
            address=address if address and address.token else None,
            stopped=tree.state not in _RUNS,
            kernels=[kernel.pid for kernel in find_kernels(snapshot)],
        )
    except NotFound:
        return None
    except Exception:  # noqa: BLE001 whatever it is, it is one session's
        _log.exception("%s cannot be looked at", tree.key)
        return None


def find_kernels(snapshot: Snapshot) -> list[Process]:
    """The kernels that the session's server has started."""
    server = snapshot.server
    if server is None:
        return []
    mine = [each for each in snapshot.processes if each.ppid == server.pid]
    found = []
    for program in mine[:MOST_ASKED]:
        try:
            if is_started_as_kernel(program.pid):
                found.append(program)
        except TimeoutError:
            break  # this user's programs keep us waiting: no more of them are asked
        except OSError:
            continue
    return found
