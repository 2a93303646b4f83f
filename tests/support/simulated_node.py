"""A node of the simulator in real time: its agent is the product's own.

Only what is below it is a double: kernel, CRIU, driver and store
(``simulation/doubles``). So many nodes as a test likes share one store.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tornado.httpserver import HTTPServer

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from simulation.doubles.kernel import Kernel, installed
from simulation.doubles.machine import GIB, Machine, Machines, Place, ProgramTree
from simulation.doubles.store import StoreInMemory
from simulation.loop import Program
from simulation.programs import agent_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.models import SessionKey

TOKEN = "agent-token"


class Nodes:
    def __init__(self) -> None:
        self.machines = Machines()
        self.kernel = Kernel(self.machines, random.Random(1), self._wrong)
        self.kernel.rehearses = True
        self.kernel.takes = self._takes
        self.kernel.at = self._at
        self.seconds = 0.0  #: that each step of an operation takes
        self.held = ""  #: work that waits until it is let go on, or called off
        self.store = StoreInMemory(random.Random(1), committed=_nothing)
        self.store.deleted = _nothing
        self._names = 0

    def add(self, name: str = "memory") -> Node:
        return Node(self, name, len(self.machines.by_name) + 1)

    def name(self) -> str:
        self._names += 1
        return f"i-{self._names}"

    def _takes(self, *_: float) -> None:
        time.sleep(self.seconds or 0.002)

    def _at(self, work: str, place: Place, cancel: Any) -> None:
        del place
        while self.held == work and not cancel.is_set:
            time.sleep(0.002)

    @staticmethod
    def _wrong(law: str, what: str) -> None:
        raise AssertionError(f"{law}: {what}")


class Node:
    def __init__(self, nodes: Nodes, name: str, number: int) -> None:
        self.nodes = nodes
        self.machine = Machine(name, number, 16 * GIB, _nothing)
        nodes.machines.by_name[name] = self.machine
        self.agent = agent_node(
            self.machine,
            Program(f"the agent of {name}", name),
            nodes.kernel,
            nodes.store,
            SystemClock(),
        )

    def run(
        self, key: SessionKey, contents: str = "work", incarnation: str = "", **more
    ) -> Place:
        gpu, login = more.pop("gpu", 0), more.pop("login", ("a-login", 8888))
        tree = ProgramTree(contents, *login, gpu, on_gpu=gpu > 0)
        name = incarnation or self.nodes.name()
        return self.machine.add(key, name, tree=tree, **more)

    def hold(self, key: SessionKey, incarnation: str = "", **more) -> Place:
        return self.machine.add(
            key, incarnation or self.nodes.name(), tree=None, **more
        )

    def serve(self, folder: Path) -> tuple[HTTPServer, str]:
        server = HTTPServer(make_application(self.agent, TOKEN))
        path = folder / "agent.sock"
        server.add_socket(unix_sockets.listening(path))
        return server, f"unix:{path}"


@contextmanager
def simulated_nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    with installed(nodes.kernel, random.Random("names"), []):
        yield nodes


def _nothing(*_: object) -> None:
    """Nobody wants to know."""
