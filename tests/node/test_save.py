"""A save point: the session stands still for a copy, and goes on."""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import uuid
from pathlib import Path

import pytest

from tests.node.test_crash import at, remains, settled
from tests.node.test_undo import fill
from tests.support.agent import COUNTER, goes_on, wait_for
from tests.support.fake_cards import computes, holders
from tests.support.long_stories import but

pytestmark = pytest.mark.shares_an_agent(card=True)

#: Steps in the order in which they come; from ``save`` on it goes on.
STEPS = ["preflight", "dump", "files", "thaw", "save", "commit"]
#: As much as takes a store some moments.
MUCH = "import os; much = os.urandom(100 << 20)"


COUNTS = """
import time
for i in range(200):
    print(i, flush=True)
    time.sleep(0.01)
"""


class Counted(threading.Thread):
    """A cell that counts, on one connection that must not be cut."""

    def __init__(self, server, kernel: str, code: str) -> None:
        super().__init__(daemon=True)
        self._server, self._code = server, code
        self.kernel = kernel
        self.text = ""
        self.failure: Exception | None = None

    def run(self) -> None:
        session = uuid.uuid4().hex
        try:
            with self._server.channel(self.kernel, session) as channel:
                message = self._server.execute(channel, session, self._code)
                while True:
                    answer = json.loads(channel.recv(30))
                    if answer["parent_header"].get("msg_id") != message:
                        continue
                    content = answer["content"]
                    self.text += content.get("text", "")
                    if content.get("execution_state") == "idle":
                        return
        except Exception as error:
            self.failure = error


def test_session_goes_on_uncut_and_comes_back_as_it_was_when_it_was_saved(
    agent, jupyter, places
):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, "x = [1, 2, 3]; import os; pid = os.getpid()")
    pid = server.run(kernel, "pid")

    # Its connections are not cut, and no output is lost.
    (server.home / "large").write_bytes(os.urandom(32 << 20))
    expected = hashlib.sha256((server.home / "large").read_bytes()).hexdigest()
    counted = Counted(server, kernel, COUNTS)
    counted.start()
    with server.client.stream("GET", "files/large", timeout=60) as download:
        got = hashlib.sha256()
        parts = download.iter_bytes(1 << 20)
        got.update(next(parts))
        for number in (1, 2):
            agent.saved(server.place, f"cp-{number}", number)
            got.update(next(parts))
        for part in parts:
            got.update(part)
    assert got.hexdigest() == expected
    counted.join(60)
    assert counted.failure is None, counted.failure
    assert counted.text.split() == [str(number) for number in range(200)]

    agent.saved(server.place, "cp-3", 3)
    tree = agent.tree(server.place)
    assert (tree["state"], tree["origin"]) == ("running", "cp-3")
    assert server.run(kernel, "x.append(4); x") == "[1, 2, 3, 4]"

    # It is restored nowhere else while it runs.
    refused = agent.restore(places("hold"), "cp-3")[-1]
    assert refused["code"] == "checkpoint_busy", refused

    server.place.kill()
    agent.come_back(places("hold"), "cp-3")
    # IPython may add that its history has gone on without it.
    assert server.run(kernel, "x, os.getpid()").startswith(f"([1, 2, 3], {pid})")


#: A program that writes its running sum into a file, over and over.
SUMS = """
import itertools, sys
with open(sys.argv[1], "w") as file:
    for number in itertools.count():
        print(number, number * (number + 1) // 2, file=file, flush=True)
"""


def test_file_that_it_writes_while_its_return_is_tried_is_no_obstacle(
    agent, places, folder
):
    sums = folder / "sums"
    place = places("start", sys.executable, "-I", "-S", "-c", SUMS, str(sums), env={})
    wait_for(lambda: sums.exists() and sums.stat().st_size)
    agent.saved(place, "cp-1")
    size = sums.stat().st_size
    wait_for(lambda: sums.stat().st_size > size)


#: A program that renames, replaces and deletes what it has just opened, over and over.
PASSES = """
import itertools, os, sys, time
os.chdir(sys.argv[1])
for folder in map(str, itertools.count()):
    os.mkdir(folder); os.chdir(folder)
    with open("journal", "w") as journal, open("part", "w") as part:
        print("half", file=part, flush=True)
        with open("part") as seen:
            sys.stdout.write("x"); sys.stdout.flush()
            time.sleep(0.02)
    os.rename("part", "../whole"); os.unlink("journal")
    os.chdir(".."); os.rmdir(folder)
"""


def test_files_that_are_renamed_or_deleted_while_it_is_saved_are_no_obstacle(
    agent, places, folder
):
    line = (sys.executable, "-I", "-S", "-c", PASSES, str(folder))
    place = places("start", *line, env={})
    wait_for(lambda: place.output.stat().st_size)
    for number in (1, 2, 3):
        agent.saved(place, f"cp-{number}", number)
    assert goes_on(place)


@pytest.mark.parametrize("step", but(STEPS, "dump", "commit"))
def test_agent_killed_the_session_goes_on(agent, counter, step):
    agent.save(counter, "cp-1", until=at(step, "begun"))
    assert settled(agent, counter)["state"] == "running"
    assert goes_on(counter)
    assert [one["id"] for one in agent.get("/v1/checkpoints").json()] in ([], ["cp-1"])
    agent.saved(counter, "cp-2", 2)
    assert goes_on(counter)


@pytest.mark.usefixtures("small_store")
def test_store_that_is_full_costs_the_save_point_alone(agent, counter):
    failed = agent.save(counter, "cp-1")
    assert failed[-1]["failure"]["code"] == "store_full", failed[-1]
    assert goes_on(counter)
    assert agent.tree(counter)["state"] == "running"


def test_session_that_ends_behind_its_copy_is_saved(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, MUCH)
    agent.save(server.place, "cp-1", until=at("save", "begun"))
    server.place.kill()
    wait_for(lambda: agent.get("/v1/checkpoints").json())
    server.place = agent.come_back(places("hold"), "cp-1")
    assert server.run(kernel, "len(much)") == str(100 << 20)


def test_session_with_a_card_gets_its_memory_back_before_it_goes_on(agent, start):
    session = start()
    computes(session)
    agent.saved(session, "cp-1")
    computes(session)
    assert holders(session)
    assert agent.tree(session)["state"] == "running"


@pytest.mark.parametrize("step", but(["gpu", *STEPS], "gpu"))
def test_agent_killed_a_session_with_a_card_computes_on(agent, start, step):
    session = start()
    computes(session)
    agent.save(session, "cp-1", until=at(step, "begun"))
    assert settled(agent, session)["state"] == "running"
    computes(session)
    assert holders(session)


@pytest.mark.long
def test_agent_keeps_no_memory_of_a_save_point_that_was_called_off(agent, jupyter):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, MUCH)

    def resident() -> int:
        fields = Path(f"/proc/{agent.popen.pid}/statm").read_text().split()
        return int(fields[1]) * 4096

    before = resident()
    for number in range(3):
        agent.save(server.place, f"cp-{number}", number, until=at("save", "begun"))
        agent.cancel(server.place)
        wait_for(lambda: not agent.tree(server.place)["operation"])
    assert resident() - before < 100 << 20


@pytest.mark.usefixtures("small_store")
def test_one_that_cannot_be_begun_leaves_nothing_behind(agent, counter):
    fill(Path(f"{agent.folder}/store"))
    failed = agent.save(counter, "cp-1")[-1]
    assert failed.get("code", failed.get("failure", {}).get("code")) == "store_full"
    assert goes_on(counter)
    Path(f"{agent.folder}/store/ballast").unlink()
    assert [Path(one).name for one in remains(agent)] in ([], ["identity"])


def test_late_order_does_not_save_what_would_pass_for_older(agent, places):
    """An order to suspend was given first, and comes when a later one is done."""
    program = (sys.executable, "-I", "-S", "-c", COUNTER)
    place = places("start", *program, env={}, options={"session": "s1"})
    wait_for(lambda: place.output.stat().st_size)
    agent.saved(place, "cp-3", 3)
    late = agent.capture(place, "cp-2", 2)[-1]
    assert late["failure"]["code"] == "order_overtaken", late
    assert goes_on(place)
    agent.captured(place, "cp-4", 4)


def test_frozen_session_of_a_lost_folder_is_not_taken_for_its_save_point(
    agent, counter
):
    """It has gone on since: what it holds would be lost with its release."""
    assert agent.save(counter, "cp-1", 1)[-1]["checkpoint"]["goes_on"]
    agent.kill()
    shutil.rmtree(agent.folder / "state" / "records")
    for process in counter.tree.processes:
        os.kill(process.pid, signal.SIGSTOP)
    agent.start()
    wait_for(lambda: agent.tree(counter)["state"] == "running")
    assert goes_on(counter)
