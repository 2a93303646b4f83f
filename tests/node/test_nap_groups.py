"""Kernels of one session nap and wake one by one; card and driver are false.

A kernel ends if it runs while its memory is away, so what answers a cell has its own.
"""

import pytest

from jupyterhub_gpu_reclaim.linux import processes
from tests.node.conftest import server_with_a_card
from tests.support.agent import wait_for
from tests.support.fake_cards import take_card

#: A cell whose children open the card, one after the other, for some seconds.
FORKS = """
import os, time
end = time.monotonic() + 6
while time.monotonic() < end:
    if not (child := os.fork()):
        os.open("{device}", os.O_RDWR)
        time.sleep(0.02)
        os._exit(0)
    os.waitpid(child, 0)
"""


class Kernels:
    """Two kernels with a card each in one session."""

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
    """Of one test alone."""
    return Kernels(agent, jupyter(), counting, device)


def test_cell_wakes_its_own_kernel_and_no_other(kernels):
    both = kernels.order("nap")["tree"]
    assert (both["state"], kernels.naps()) == ("napping", [True, True])

    assert kernels.answers(kernels.first)
    tree = kernels.settled("running")
    assert kernels.naps() == [False, True]
    assert tree["nap"]["begun"] == both["nap"]["begun"]

    assert kernels.answers(kernels.second)
    assert not kernels.settled("running")["nap"]
    assert kernels.naps() == [False, False]


@pytest.mark.long
def test_nap_takes_in_whoever_is_awake_again(kernels):
    kernels.order("nap")
    for _ in range(2):
        assert kernels.answers(kernels.first)
        kernels.settled("running")
        assert kernels.order("nap")["tree"]["state"] == "napping"
        assert kernels.naps() == [True, True]
    assert kernels.order("wake")["tree"]["state"] == "running"
    assert kernels.naps() == [False, False]
    assert kernels.answers(kernels.first)
    assert kernels.answers(kernels.second)


@pytest.mark.long
def test_nap_takes_in_a_kernel_that_has_taken_a_card_meanwhile(own, driver, device):
    own.order("nap")
    third = own.server.start_kernel("c.ipynb")
    take_card(own.server, third, driver, device)
    own.pids[third] = int(own.server.run(third, "import os; os.getpid()"))
    assert own.order("nap")["tree"]["state"] == "napping"
    assert own.naps() == [True, True]
    assert own.is_stopped(third)
    assert own.answers(third)
    assert own.naps() == [True, True]


@pytest.mark.long
def test_order_wakes_what_is_asleep_still(kernels):
    kernels.order("nap")
    assert kernels.answers(kernels.first)
    kernels.settled("running")
    assert not kernels.order("wake")["tree"]["nap"]
    assert kernels.naps() == [False, False]
    assert kernels.answers(kernels.second)


@pytest.mark.long
def test_kernel_that_is_restarted_lets_the_other_nap_on(own):
    own.order("nap")
    path = f"api/kernels/{own.first}/restart"
    assert own.server.client.post(path).status_code == 200
    assert own.server.run(own.first, "6 * 7") == "42"
    own.settled("running")
    assert own.is_stopped(own.second)
    assert own.answers(own.second)


@pytest.mark.long
def test_next_agent_holds_what_is_asleep_still(kernels):
    kernels.order("nap")
    assert kernels.answers(kernels.first)
    kernels.settled("running")
    kernels.agent.kill()
    kernels.agent.start()
    assert kernels.settled("running")["nap"]
    assert kernels.naps() == [False, True]
    assert kernels.answers(kernels.first)
    assert kernels.answers(kernels.second)
    assert not kernels.settled("running")["nap"]


def test_agent_killed_while_one_falls_asleep_leaves_the_other_one_so(kernels):
    kernels.order("nap")
    assert kernels.answers(kernels.first)
    kernels.settled("running")
    kernels.agent.kill()
    (record,) = (kernels.agent.folder / "state" / "records").glob("*.json")
    asleep = record.read_bytes()
    kernels.agent.start()
    assert kernels.order("nap")["tree"]["state"] == "napping"
    kernels.agent.kill()
    text = record.read_bytes()
    assert text != asleep
    first = b"%d" % kernels.pids[kernels.first]
    text = text.replace(b'"asleep"', b'"falling"')
    text = text.replace(b'"moving":[]', b'"moving":[' + first + b"]")
    record.write_bytes(text)
    kernels.agent.start()
    kernels.settled("running")
    assert kernels.naps() == [False, True]
    assert kernels.answers(kernels.first)
    assert kernels.answers(kernels.second)


@pytest.mark.long
def test_suspend_from_it_is_taken_back_and_then_brings_both_back(own, places):
    own.order("nap")
    assert own.answers(own.first)
    own.settled("running")
    place = own.server.place
    assert own.agent.capture(place, "cp")[-1].get("checkpoint")
    own.agent.post(f"/v1/sessions/{place.incarnation}/thaw")
    own.settled("running")
    assert own.naps() == [False, True]
    assert own.answers(own.first)
    assert own.is_stopped(own.second)

    assert own.agent.capture(place, "cp-2")[-1].get("checkpoint")
    path = f"/v1/sessions/{place.incarnation}/release"
    gone = own.agent.post(path, {"checkpoint": "cp-2"}).json()
    assert gone["state"] == "gone"
    tree = own.agent.restore(places("hold"), "cp-2")[-1]["tree"]
    assert (tree["state"], tree["nap"]) == ("running", None)
    assert own.answers(own.first)
    assert own.answers(own.second)


def test_kernel_naps_alone_and_the_other_works_on(kernels):
    (sample,) = kernels.agent.get("/v1/samples").json()
    programs = {each["id"]: each["program"] for each in sample["kernels"]}
    assert programs == kernels.pids

    for _ in range(2):
        tree = kernels.order("nap", programs=[programs[kernels.second]])["tree"]
        assert (tree["state"], bool(tree["nap"])) == ("running", True)
        assert kernels.naps() == [False, True]
        assert kernels.answers(kernels.first)
    assert kernels.is_stopped(kernels.second)

    assert kernels.order("nap")["tree"]["state"] == "napping"
    assert kernels.naps() == [True, True]
    assert kernels.answers(kernels.second)
    tree = kernels.order("nap", programs=[programs[kernels.second]])["tree"]
    assert tree["state"] == "napping"
    assert kernels.answers(kernels.first)
    assert kernels.answers(kernels.second)


@pytest.mark.long
def test_kernel_naps_whatever_the_programs_of_others_begin_meanwhile(own, device):
    """Their children open the card in each moment of it."""
    own.server.run(own.first, FORKS.format(device=device), wait=False)
    wait_for(lambda: len(own.server.place.tree.processes) > 4)
    tree = own.order("nap", programs=[own.pids[own.second]]).get("tree")
    assert tree
    assert (tree["state"], own.naps()) == ("running", [False, True])
    assert own.answers(own.second)
    assert own.answers(own.first)


@pytest.mark.long
def test_nap_of_what_uses_no_gpu_is_refused_and_of_nonsense_too(own):
    idle = own.server.start_kernel("d.ipynb")
    pid = int(own.server.run(idle, "import os; os.getpid()"))
    for programs in ([pid], [1], [99999]):
        failure = own.order("nap", programs=programs)["failure"]
        assert failure["code"] == "gpu_unused"
    path = f"/v1/sessions/{own.server.place.incarnation}/nap"
    for programs in ([0], [-1], ["a"], "all", [True]):
        answer = own.agent.post(path, {"programs": programs})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert own.naps() == [False, False]
