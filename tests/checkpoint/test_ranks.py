"""Programs of one session that talk to each other over the machine's own address."""

import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from tests.support.ranks import PROGRAM


class Network:
    """A network namespace whose only interface has addresses."""

    def __init__(self, *addresses: str) -> None:
        self.popen = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep 1000"],
            stdout=subprocess.PIPE,
        )
        self.popen.stdout.readline()
        self.run("ip", "link", "set", "lo", "up")
        for address in addresses:
            nodad = ["nodad"] if ":" in address else []
            self.run("ip", "address", "add", address, "dev", "lo", *nodad)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def run(self, *words: str) -> None:
        inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        subprocess.run([*inside, *words], check=True)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()


@pytest.fixture
def networks():
    made = []

    def make(*addresses: str) -> Network:
        made.append(Network(*addresses))
        return made[-1]

    yield make
    for network in made:
        network.close()


V4 = {"family": "AF_INET", "address": "10.9.8.7", "loop": "127.0.0.1"}
V6 = {"family": "AF_INET6", "address": "fd00:9::7", "loop": "::1"}


def saved(engine, place):
    """Its image, as it is taken when the tree goes on and is killed at once."""
    image = engine.image()
    pids = [process.pid for process in place.tree.processes]
    cut = inet.cut_external(place.init_pid, pids)
    result = engine.dump(place, image.sink)
    place.kill()
    return image, result, cut


def comes_back(engine, places, network, image, result, cut):
    place = places.hold(network=network.pid)
    proceed(engine.restore(place, image, result, cut=cut), result.stopped)
    return place


@pytest.mark.parametrize(
    ("ip", "changed"),
    [
        pytest.param(V4, True, id="v4"),
        pytest.param(V6, True, id="v6"),
        pytest.param(V4, False, id="v4 same", marks=pytest.mark.long),
        pytest.param(V6, False, id="v6 same"),
    ],
)
def test_ranks_of_one_session_go_on_where_they_were(
    places, engine, networks, ip, changed
):
    first = networks("10.9.8.7/24", "fd00:9::7/64")
    second = networks("10.20.1.2/24", "fd00:20::2/64") if changed else first
    place = places.start(sys.executable, "-c", PROGRAM.format(**ip), network=first.pid)
    place.read_until("rank 0 at 2000")
    place.read_until("rank 1 at")
    image, result, cut = saved(engine, place)
    place = comes_back(engine, places, second, image, result, cut)
    seen = place.read_until("rank 0 at")
    while seen.count("rank 0 at") < 5 or seen.count("rank 1 at") < 5:
        seen += place.read_until("\n")
    assert "lost" not in seen
    assert "got" not in seen
    loopback = {"AF_INET": "127.0.0.1", "AF_INET6": "::1"}[ip["family"]]
    addresses = {line.split()[-1] for line in seen.splitlines()[1:-1]}
    assert addresses == {loopback if changed else ip["address"]}
