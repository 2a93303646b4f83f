"""``jupyterhub-gpu-reclaim-agent``: the program that runs as root on every node.

With its configuration read, it continues sessions that a former agent left in the
middle of a capture (``workflows.rescue``). Then it wires GPU driver, CRIU and store,
settles the rest (``workflows.recovery``), and answers the service. An agent that cannot
do that continues all sessions before it ends, and so does ``--recover``, which the
systemd unit runs when the agent has ended. Wiring happens only here. It never prints or
logs the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
from jupyterhub_gpu_reclaim.common import logs
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.linux import host
from jupyterhub_gpu_reclaim.linux.libc import limit_arenas
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.http.listener import (
    CannotStartError,
    folder,
    listen,
    own_folder,
    remove_socket,
)
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.nap.wakers import Wakers
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from jupyterhub_gpu_reclaim.node.operations.operations import Operations
from jupyterhub_gpu_reclaim.node.operations.records import Records
from jupyterhub_gpu_reclaim.node.sessions.docker_placements import (
    DockerEngine,
    DockerPlacements,
)
from jupyterhub_gpu_reclaim.node.sessions.placements import (
    LocalPlacements,
    PodPlacements,
)
from jupyterhub_gpu_reclaim.node.sessions.samples import TreeSampler
from jupyterhub_gpu_reclaim.node.setup.readiness import CheckedCriu, node_status
from jupyterhub_gpu_reclaim.node.setup.settings import AgentSettings
from jupyterhub_gpu_reclaim.node.setup.store import open_store
from jupyterhub_gpu_reclaim.node.state_folder import RECORDS
from jupyterhub_gpu_reclaim.node.workflows import rescue
from jupyterhub_gpu_reclaim.node.workflows.tools import WorkflowTools
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements
    from jupyterhub_gpu_reclaim.node.setup.store import Opened

_log = logging.getLogger(__name__)

#: Threads for what blocks. Every capture and restore holds one for as long as it takes;
#: asyncio's own six on two cores would make looking and thawing wait behind them.
_THREADS = 256
#: Heaps that they share; Python lets few of them allocate at the same time.
_ARENAS = 4
#: Seconds that the agent waits at its own end for what is under way: captures are
#: called off, restores finished. What is left then is settled at the next start.
STOP_SECONDS = 60.0
#: Seconds for closing everything then. With STOP_SECONDS it stays below what systemd's
#: unit (120) and the DaemonSet (180) give the agent.
_CLOSE_SECONDS = 10.0


#: Exit status after SIGINT, by which systemd says that it starts another agent at once
#: (``RestartKillSignal`` of the unit): what is captured, or naps, is left to that one.
HANDED_OVER = 75
#: The command that lets everybody go on.
_RECOVER = "--recover"


class AgentApp(AgentSettings):
    """The agent's program; :class:`AgentSettings` has its settings."""

    def start(self) -> None:
        logs.set_up(cast("int | str", self.log_level))
        limit_arenas(_ARENAS)
        # Sessions' memory and keys stay out of core files. The hard limit stays: a
        # restored session may have a limit of its own.
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        try:
            status = asyncio.run(self._main())
        except (CannotStartError, ReclaimError) as error:
            sys.exit(f"{self.name}: {error}")
        sys.exit(status)

    async def _main(self) -> int:
        if os.geteuid() != 0:
            raise CannotStartError("it must run as root: it stops and moves sessions")
        # Before there is any thread: what it does to our view is for later ones only.
        placements = self._placements()
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="agent")
        asyncio.get_running_loop().set_default_executor(threads)
        state = own_folder(state_folder.place())
        with state_folder.lock(state) as free:
            if not free:  # two agents would undo each other's work
                raise CannotStartError(f"another agent runs on {state}")
            clock = SystemClock()
            ports = HeldPorts(state)
            with contextlib.suppress(Refused):  # recovery insists
                ports.settle()  # first of all: nothing else keeps others off them now
            await asyncio.to_thread(rescue.first_act, state)
            store = await asyncio.to_thread(open_store, self, clock, state=state)
            node = self._node(placements, state, clock, store, ports)
            await node.recovery.recover()
            wakers = Wakers(
                placements, node.tools.records, node.operations, node.wake_up
            )
            wakers.begin()
            server = listen(self, node)
            _log.info("- listening on %s, version %s", self.listen, __version__)
            status = 0
            try:
                status = await _signalled()
            finally:
                server.stop()
                wakers.close()
                late = await node.operations.finish(STOP_SECONDS)
                for incarnation in late:
                    _log.warning(
                        "- unfinished, the next start settles it: %s", incarnation
                    )
                _leave_after(_CLOSE_SECONDS, status)
                await server.close_all_connections()
                node.tools.client.close()
                await asyncio.to_thread(node.tools.accelerator.close)
                await asyncio.to_thread(store.close)
                remove_socket(self)
            return status

    def _placements(self) -> Placements:
        if self.placement == "local":
            return LocalPlacements(self.realm)
        # Control groups are named from here on as the host names them.
        host.name_groups_as_host()
        if self.placement == "docker":
            return DockerPlacements(DockerEngine(self.docker_socket), self.realm)
        return PodPlacements(self.realm)

    def accelerator(
        self, kind: type[Accelerator] = Accelerator, nvml: Nvml | None = None
    ) -> Accelerator:
        """The GPUs of this machine; the demo has simulated ones."""
        return kind(Driver(), nvml or Nvml(), self.limits())

    def _node(
        self,
        placements: Placements,
        state: Path,
        clock: Clock,
        opened: Opened,
        ports: HeldPorts,
    ) -> LocalNode:
        store = opened.repository
        accelerator = self.accelerator()
        sampler = Sampler(clock, accelerator.cards)
        shutil.rmtree(state / "work", ignore_errors=True)
        work = folder(state / "work")
        criu = CheckedCriu(Path(self.criu_dir), clock)
        return LocalNode(
            placements=placements,
            operations=Operations(),
            sampler=TreeSampler(sampler),
            tools=WorkflowTools(
                records=Records(folder(state / RECORDS)),
                store=store,
                criu=criu,
                client=sampler.client,
                clock=clock,
                limits=self.limits(),
                work=work,
                accelerator=accelerator,
                memory=HostMemory(),
                ports=ports,
                trusted_capabilities=tuple(self.trusted_capabilities),
                save_point_file_bytes=self.save_point_file_bytes,
            ),
            term=KnownTerm(state),
            describe=partial(node_status, criu, accelerator, opened, ports, work),
        )


async def _signalled() -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Queue[int] = asyncio.Queue()
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, HANDED_OVER)):
        loop.add_signal_handler(number, ended.put_nowait, status)
    return await ended.get()


def _leave_after(seconds: float, status: int) -> None:
    """End the process by then, even if something still waits for an answer."""
    # Python joins its threads before it ends, and a call to a store that is gone waits
    # for minutes. Cutting it off is no worse than a kill, which the next start settles.

    def leave() -> None:
        _log.warning("- exiting although the store or a program has not answered")
        logging.shutdown()
        os._exit(status)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


def main(app: type[AgentApp] = AgentApp) -> None:
    state = state_folder.place()
    if _RECOVER in sys.argv:
        # systemd tells what is run at the end of a unit how that has ended.
        followed = os.environ.get("EXIT_STATUS") == str(HANDED_OVER)
        sys.exit(0 if followed or rescue.everything(state) else 1)
    try:
        app.launch_instance()
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) else 1
        if status not in {None, 0, HANDED_OVER}:
            rescue.everything(state)
        raise
