"""Kernels of one session nap and wake together; card and driver are false.

A kernel ends if it runs while its memory is away, so what answers a cell has its own.
"""

import pytest

from jupyterhub_gpu_reclaim.linux import processes
from tests.node.conftest import server_with_a_card
from tests.support.agent import wait_for
from tests.support.fake_cards import take_card


class Kernels:
    def __init__(self, agent, server, driver, device) -> None:
        self.agent, self.server = agent, server
        self.first = server.start_kernel("a.ipynb")
        self.second = server.start_kernel("b.ipynb")
        self.pids = {}
        for kernel in (self.first, self.second):
            take_card(server, kernel, driver, device)
            self.pids[kernel] = int(server.run(kernel, "import os; os.getpid()"))

    def order(self, name: str, **body) -> dict:
        path = f"/v1/sessions/{self.server.place.incarnation}/{name}"
        return self.agent.events(path, body)[-1]

    @property
    def tree(self) -> dict:
        return self.agent.tree(self.server.place)

    def is_stopped(self, kernel: str) -> bool:
        tree = self.server.place.tree.processes
        (process,) = (p for p in tree if p.ns_pid == self.pids[kernel])
        return processes.is_stopped(process)

    def naps(self) -> list[bool]:
        return [self.is_stopped(kernel) for kernel in (self.first, self.second)]

    def settled(self, state: str) -> dict:
        wait_for(lambda: (self.tree["state"], self.tree["operation"]) == (state, ""))
        return self.tree

    def answers(self, kernel: str) -> bool:
        """A cell is run; its kernel has its card."""
        return self.server.run(kernel, "has_card()") == "True"


@pytest.fixture(scope="module")
def shared(library):
    with server_with_a_card(library, counting=True) as (agent, server, card):
        yield Kernels(agent, server, *card)


@pytest.fixture
def kernels(shared):
    """Of tests that leave both of them awake, and nobody beside them."""
    yield shared
    assert shared.naps() == [False, False]


@pytest.fixture
def own(counting, device, agent, jupyter):
    return Kernels(agent, jupyter(), counting, device)


def test_cell_in_one_of_them_wakes_both(kernels):
    for _ in range(2):
        assert kernels.order("nap")["tree"]["state"] == "napping"
        assert kernels.naps() == [True, True]
        assert kernels.answers(kernels.first)
        assert not kernels.settled("running")["nap"]
        assert kernels.naps() == [False, False]
        assert kernels.answers(kernels.second)


@pytest.fixture
def beside(own, driver, device):
    """A third kernel, which has taken a card beside the nap of the others."""
    own.order("nap")
    third = own.server.start_kernel("c.ipynb")
    take_card(own.server, third, driver, device)
    own.pids[third] = int(own.server.run(third, "import os; os.getpid()"))
    assert own.naps() == [True, True]
    return third


@pytest.mark.long
def test_nap_takes_in_a_kernel_that_has_taken_a_card_beside_it(own, beside):
    assert own.order("nap")["tree"]["state"] == "napping"
    assert own.is_stopped(beside)
    assert own.answers(beside)
    own.settled("running")
    assert own.answers(own.first)
    assert own.answers(own.second)


def test_agent_killed_while_another_one_falls_asleep_wakes_them_all(own, beside):
    assert own.order("nap")["tree"]["state"] == "napping"
    own.agent.kill()
    (record,) = (own.agent.folder / "state" / "records").glob("*.json")
    record.write_bytes(record.read_bytes().replace(b'"asleep"', b'"falling"'))
    own.agent.start()
    assert not own.settled("running")["nap"]
    for kernel in (own.first, own.second, beside):
        assert own.answers(kernel)
