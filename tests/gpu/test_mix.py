"""Many people's sessions on one card, all coming and going at once for a while.

``MIX_SECONDS`` and ``MIX_SESSIONS`` say how long and how many; by default it is short.
They share the machine's network, as on a machine with local sessions, so namespaces'
numbers, pids and ports are given to one session after the other.
"""

import os
import random
import threading
import time
import traceback
from pathlib import Path

import pytest

from tests.gpu.conftest import Session
from tests.gpu.test_names import number_of
from tests.support.agent import Agent, Place, criu_folder

SECONDS = float(os.environ.get("MIX_SECONDS", "30"))
SESSIONS = int(os.environ.get("MIX_SESSIONS", "6"))
SEED = int(os.environ.get("MIX_SEED", "28"))
STEPS = 400
TRAIN = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(),
                          torch.nn.Linear(512, 8)).cuda()
adam = torch.optim.AdamW(net.parameters())
def train(steps):
    told = []
    for _ in range(steps):
        rows = torch.randn(64, 256, device="cuda")
        loss = (net(rows) - rows[:, :8].sin()).square().mean()
        adam.zero_grad(); loss.backward(); adam.step()
        told.append(float(loss))
    return told
"""
MEMORY = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from soak.zoo.gpu import DeviceMemory, PinnedMemory, Streams, TwoProcesses
"""
KINDS = ("train", "DeviceMemory", "Streams", "train", "PinnedMemory", "TwoProcesses")


class Program:
    def __init__(self, session: Session, kind: str, losses: list[float]) -> None:
        self.session, self.kind, self.losses = session, kind, losses
        self.done = 0
        session(TRAIN + "None" if kind == "train" else f"{MEMORY}\nheld = {kind}()")
        self.said = self._look()

    def _look(self):
        return None if self.kind == "train" else self.session("held.look()")

    def check(self) -> None:
        """What it computed before is there still; then it goes on."""
        if self.kind == "train":
            seen = self.session("train(8)")
            assert seen == self.losses[self.done : self.done + 8], self.done
            self.done += 8
            return
        assert self._look() == self.said
        self.session("held.work()")
        self.said = self._look()


class Mix:
    """People who each have one session after the other."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.made: list[Place] = []
        self.failures: list[str] = []
        self.returns = self.lives = self.met = 0
        self.away: dict[int, int] = {}  # numbers of suspended sessions' namespaces
        self._lock = threading.Lock()
        self.end = time.monotonic() + SECONDS
        twin = self._session()
        twin(TRAIN + "None")
        self.losses = twin(f"train({STEPS})")
        twin.place.kill()

    def _session(self) -> Session:
        def place(mode: str, *command: str, env=None) -> Place:
            self.made.append(Place(self.agent.folder, mode, *command, env=env))
            return self.made[-1]

        return Session(self.agent, place)

    def person(self, number: int) -> None:
        chance = random.Random(f"{SEED} {number}")
        turn = number
        while time.monotonic() < self.end and not self.failures:
            kind, turn = KINDS[turn % len(KINDS)], turn + 1
            at = time.monotonic() - self.end + SECONDS
            try:
                self._live(kind, chance)
            except BaseException:  # told at the end, with all others
                why = f"{at:.0f} s, {kind}: {traceback.format_exc()[-3000:]}"
                self.failures.append(why)

    def _live(self, kind: str, chance: random.Random) -> None:
        one = self._session()
        with self._lock:
            self.met += number_of(one) in self.away.values()
            self.lives += 1
        program = Program(one, kind, self.losses)
        for _ in range(chance.randrange(1, 6)):
            program.check()
            time.sleep(chance.uniform(0, 2))
            with self._lock:
                self.away[id(one)] = number_of(one)
            checkpoint = one.leave()
            time.sleep(chance.uniform(0, 4))
            one.come_back(checkpoint)
            with self._lock:
                self.away.pop(id(one))
                self.returns += 1
            program.check()
            if time.monotonic() > self.end:
                break
        one.place.kill()


@pytest.fixture
def mix(folder, driver):
    inside = folder / "mix"
    inside.mkdir()
    agent = Agent(inside, criu_folder())
    agent.start()
    made = Mix(agent)
    yield made
    for place in made.made:
        place.kill()
    agent.kill()
    print(agent.log.read_text()[-20000:])


@pytest.mark.timeout(SECONDS + 300)
def test_sessions_come_and_go_beside_each_other_and_none_is_lost(mix):
    people = [
        threading.Thread(target=mix.person, args=(number,))
        for number in range(SESSIONS)
    ]
    for one in people:
        one.start()
    for one in people:
        one.join()
    print(
        f"{SESSIONS} people, {SECONDS:.0f} s: {mix.lives} sessions, {mix.returns}"
        f" returns; {mix.met} began with the number of one that was away;"
        f" {len(mix.failures)} failures"
    )
    assert not mix.failures, "\n\n".join(mix.failures)
    assert mix.returns >= SESSIONS
