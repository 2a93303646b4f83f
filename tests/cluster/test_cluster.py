"""Sessions of a real cluster are saved and come back on another node."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from demo.user import read_terminal

pytestmark = pytest.mark.cluster

#: Seconds for the next agent of a node; with its output held it took 603.
AT_ONCE = 120

MAKE = """
import os, pathlib
x = list(range(100_000))
noise = os.urandom({bytes})
pathlib.Path.home().joinpath("kept.txt").write_text("home")
pathlib.Path("/tmp/kept.txt").write_text("root")
pathlib.Path("/dev/shm/kept.txt").write_text("memory")
opened = open("/tmp/kept.txt", "a")
print(os.getpid())
"""
LOOK = """
import zlib
opened.write("+"); opened.flush()
places = [pathlib.Path.home(), pathlib.Path("/tmp"), pathlib.Path("/dev/shm")]
told = [place.joinpath("kept.txt").read_text() for place in places]
print(len(x), os.getpid(), zlib.crc32(noise), *told)
"""
#: Taints of a node that is cut off.
AWAY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
#: The agent's container sees all of the node; its runtime ends the rest of it.
KILL = """
import os, pathlib, signal, time

def pids(word):
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text(errors="replace").split("\\0")
        except OSError:
            continue
        if word in words:
            yield int(path.name)

until = time.monotonic() + 60
while not any(pids("--manage-cgroups=ignore")):  # CRIU's
    assert time.monotonic() < until, "no CRIU works"
    time.sleep(0.02)
time.sleep(0.3)  # in the middle
for pid in pids("--AgentApp.realm={realm}"):
    os.kill(pid, signal.SIGKILL)
"""


class Work:
    """A user's open work: a kernel with its socket, a terminal, files."""

    def __init__(self, hub, name, size=50_000_000):
        self.hub = hub
        self.user = hub.user(name)
        self.user.start_server(seconds=600)
        self.server = self.user.server()
        self.kernel = self.server.start_kernel()
        self.kernel.connect()
        self.pid = self.kernel.run(MAKE.format(bytes=size)).text.strip()
        look = self.kernel.run("import zlib; print(zlib.crc32(noise))")
        self.noise = look.text.strip()
        self.terminal = self.server.start_terminal()
        self._type("MARK=still-here; echo made-$MARK", "made-still-here")
        self.visits = 0

    def close(self):
        self.kernel.close()
        self.hub.api("DELETE", f"users/{self.user.name}/server")
        self.hub.wait(lambda: not self.hub.pods(self.user.name), 300)

    def come_back(self):
        self.user.visit(f"/user/{self.user.name}/lab", seconds=600)
        self.hub.wait(lambda: self.hub.phase(self.user.name) == "running", 300)

    def check(self):
        assert [one["id"] for one in self.server.json("GET", "kernels")] == [
            self.kernel.id
        ]
        self.kernel.connect()
        seen = self.kernel.run(LOOK).text.split()
        self.visits += 1
        root = "root" + "+" * self.visits
        kept = ["100000", self.pid, self.noise, "home", root, "memory"]
        assert seen == kept
        self._type(f"echo found-$MARK-{self.visits}", f"found-still-here-{self.visits}")
        assert self.user.logins == 1

    def _type(self, line, answer):
        with self.server.websocket(f"terminals/websocket/{self.terminal}") as ws:
            ws.send(json.dumps(["stdin", line + "\r"]))
            read_terminal(ws, until=answer, seconds=60)


@pytest.fixture
def work_of(hub):
    made = []

    def make(name, **more):
        made.append(Work(hub, name, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def node_of(pod):
    return pod["spec"]["nodeName"]


def test_a_session_moves_to_another_node_three_times(hub, nodes, work_of):
    work = work_of("ada")
    pod = hub.pod("ada")
    assert pod["spec"]["restartPolicy"] == "Never"
    for _ in range(3):
        hub.suspend("ada")  # with its socket open, as a tab has it
        with hub.cordoned(node_of(pod)):
            work.come_back()
        held = hub.pod("ada")
        assert held["metadata"]["uid"] != pod["metadata"]["uid"]
        assert node_of(held) != node_of(pod)
        assert held["status"]["podIP"] != pod["status"]["podIP"]
        work.check()
        pod = held
    name = pod["metadata"]["name"]
    where = ("-n", hub.wanted.hub)
    told = hub.kubectl.run(*where, "exec", name, "-c", "notebook", "--", "id", "-u")
    assert told.strip() == str(hub.wanted.uid)
    hub.kubectl.run(*where, "logs", name, "-c", "notebook")


def test_a_session_that_stays_on_its_node_comes_back_there(hub, nodes, work_of):
    work = work_of("bea")
    node = node_of(hub.pod("bea"))
    hub.suspend("bea")
    with hub.cordoned(*(name for name in nodes if name != node)):
        work.come_back()
    assert node_of(hub.pod("bea")) == node
    work.check()


def test_an_agent_that_ends_is_followed_by_another_at_once(hub, work_of):
    """Beside a session that came back on its node."""
    work = work_of("cora")
    hub.suspend("cora")
    work.come_back()
    node = node_of(hub.pod("cora"))
    agent = hub.agent(node)
    begun = time.monotonic()
    hub.kubectl.run("-n", hub.wanted.agents, "delete", "pod", agent[0], "--wait=false")
    hub.agent(node, but=agent)
    assert time.monotonic() - begun < AT_ONCE
    work.check()


def test_a_session_that_is_drained_is_told_with_what_ended_it(hub, work_of):
    work_of("dan", size=1_000_000)
    node = node_of(hub.pod("dan"))
    with hub.cordoned(node):
        hub.kubectl.run(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data"),
            *("--force", "--pod-selector=gpu-reclaim/incarnation"),
            seconds=180,
        )
    hub.wait(lambda: hub.phase("dan") == "stopped", 300)
    last = hub.reclaim("GET", "sessions/dan/-/history").json()[0]
    assert last["code"] == "session_disrupted", last
    assert node in last["message"]


def test_a_node_that_is_drained_is_free_and_its_session_goes_on_elsewhere(hub, work_of):
    work = work_of("dee")
    node = node_of(hub.pod("dee"))
    with hub.cordoned(node):
        answer = hub.reclaim("POST", f"nodes/{node}/drain", json={"seconds": 600})
        assert answer.ok, answer.text
        try:
            hub.wait(lambda: hub.phase("dee") == "suspended", 300)
            hub.wait(lambda: not hub.pods("dee"))
            assert drained(hub, node) == {"dee": "saved"}
            work.come_back()
            assert node_of(hub.pod("dee")) != node
            work.check()
        finally:
            assert hub.reclaim("DELETE", f"nodes/{node}/drain").ok


def test_a_sign_that_a_node_is_about_to_go_drains_it_by_itself(hub, work_of):
    """One that no controller of a cluster that has no such handler acts on."""
    work = work_of("dot")
    node = node_of(hub.pod("dot"))
    sign = "aws-node-termination-handler/scheduled-maintenance"
    hub.kubectl.run("taint", "node", node, f"{sign}=test:NoSchedule")
    try:
        hub.wait(lambda: hub.phase("dot") == "suspended", 300)
        hub.wait(lambda: not hub.pods("dot"))
        work.come_back()
        assert node_of(hub.pod("dot")) != node
        work.check()
    finally:
        hub.kubectl.tried("taint", "node", node, f"{sign}-")
    hub.wait(lambda: drained(hub, node) is None)


def test_a_session_whose_pod_is_gone_comes_back_elsewhere_from_its_save_point(
    hub, work_of
):
    """As when a cloud's controller has removed a lost node, and with it the pod."""
    work = work_of("dia")
    pod = hub.pod("dia")
    assert hub.reclaim("POST", "sessions/dia/-/save").ok
    view = hub.wait(lambda: saved_as(hub, "dia"), 300)
    assert view["phase"] == "running"
    where = ("-n", hub.wanted.hub, "delete", "pod", pod["metadata"]["name"])
    with hub.cordoned(node_of(pod)):
        hub.kubectl.run(*where, "--force", "--grace-period=0", "--wait=false")
        hub.wait(lambda: hub.phase("dia") == "suspended", 300)
        failure = hub.reclaim("GET", "sessions/dia/-").json()["failure"]
        assert failure["code"] == "ended_since_saved", failure
        assert hub.reclaim("POST", "sessions/dia/-/resume").ok
        work.come_back()
        assert node_of(hub.pod("dia")) != node_of(pod)
    work.check()


@pytest.mark.parametrize("saved", [False, True], ids=["unsaved", "saved"])
def test_a_pod_that_somebody_deletes_is_told_as_that_and_at_once(hub, work_of, saved):
    """Not as an end of its programs by themselves, nor at the Hub's next poll."""
    name = "del-saved" if saved else "del"
    work = work_of(name, size=1_000_000)
    pod = hub.pod(name)
    if saved:
        assert hub.reclaim("POST", f"sessions/{name}/-/save").ok
        hub.wait(lambda: saved_as(hub, name), 300)
    where = ("-n", hub.wanted.hub, "delete", "pod", pod["metadata"]["name"])
    hub.kubectl.run(*where, "--timeout=120s", seconds=130)  # until it is gone
    gone = time.monotonic()
    hub.wait(lambda: hub.phase(name) == ("suspended" if saved else "stopped"), 60)
    assert time.monotonic() - gone < 10
    if saved:
        told = hub.reclaim("GET", f"sessions/{name}/-").json()["failure"]
        assert told["code"] == "ended_since_saved", told
        assert hub.reclaim("POST", f"sessions/{name}/-/resume").ok
        work.come_back()
        work.check()
    else:
        told = hub.reclaim("GET", f"sessions/{name}/-/history").json()[0]
        assert told["code"] == "session_disrupted", told
    assert "and not by the Hub: it was deleted" in told["message"], told


def test_watches_that_have_given_up_are_begun_again(hub, work_of):
    """As after a minute without an API server: KubeSpawner begins none again."""
    work = work_of("wes", size=1_000_000)
    hub.suspend("wes")
    log = ("-n", hub.wanted.hub, "logs", "deployment/hub", "--tail=-1")
    given_up = "Watching resources never recovered, giving up"
    before = hub.kubectl.tried(*log).count(given_up)
    with hub.without_rights():
        hub.wait(lambda: hub.kubectl.tried(*log).count(given_up) >= before + 2, 240)
    # the service's own watch asks again up to half a minute later
    start = ("POST", "users/wes/server")
    hub.wait(lambda: hub.api(*start).status_code in {201, 202}, 120)
    begun = time.monotonic()
    work.come_back()
    assert time.monotonic() - begun < 300  # the start's limit is 600
    work.check()
    work_of("wyn", size=1_000_000).check()


def test_an_agent_that_is_not_ready_says_why_and_is_ready_once_its_store_is_begun(hub):
    told = hub.before_store
    assert "store init" in told
    assert "/readyz" not in told
    hub.rolled_out(hub.wanted.agents, "daemonset/gpu-reclaim-agent")


def test_a_certificate_that_is_refused_is_told_with_the_cause(hub, work_of):
    work = work_of("cat", size=1_000_000)
    node = node_of(hub.pod("cat"))
    words = f"The certificate of the agent on {node} is refused: its authority"
    with hub.other_certificate():
        hub.wait(lambda: words in hub.reclaim("GET", "nodes").text)
        hub.wait(lambda: words in hub.reclaim("GET", "sessions/cat/-/why").text)
    hub.wait(lambda: words not in hub.reclaim("GET", "nodes").text)
    hub.suspend("cat")
    work.come_back()
    work.check()


def test_a_pod_stays_on_a_node_that_is_cut_off_and_not_for_300_s(hub, work_of):
    work_of("tom", size=1_000_000)
    tolerated = {each["key"]: each for each in hub.pod("tom")["spec"]["tolerations"]}
    for taint in AWAY:
        assert tolerated[taint]["effect"] == "NoExecute"
        assert "tolerationSeconds" not in tolerated[taint]


def drained(hub, node):
    """The states of the sessions of a node that is drained; None: it is not."""
    for report in hub.reclaim("GET", "drains").json():
        if report["drain"]["node"] == node:
            return {each["key"]["user"]: each["state"] for each in report["sessions"]}
    return None


def saved_as(hub, user):
    view = hub.reclaim("GET", f"sessions/{user}/-").json()
    return view if view.get("checkpoint") else None


def test_an_agent_that_is_killed_in_the_middle_of_a_capture_loses_nothing(hub, work_of):
    """CRIU does not die with the agent's container: it undoes what it has done."""
    work = work_of("dora", size=400_000_000)
    node = node_of(hub.pod("dora"))
    agent = hub.agent(node)
    begin_to_suspend(hub, "dora")
    kill_agent(hub, agent)
    hub.agent(node, but=agent)
    hub.wait(lambda: hub.phase("dora") in {"running", "suspended"}, 300)
    assert len(hub.pods("dora")) <= 1
    work.come_back()
    work.check()
    assert len(hub.pods("dora")) == 1


def test_an_agent_that_is_killed_in_the_middle_of_a_restore_keeps_what_is_saved(
    hub, nodes, work_of
):
    """The attempt fails or comes through; another one brings everything back."""
    work = work_of("ivy", size=100_000_000)
    node = node_of(hub.pod("ivy"))
    agent = hub.agent(node)
    hub.suspend("ivy")
    others = [name for name in nodes if name != node]
    with hub.cordoned(*others), ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_agent, hub, agent)  # waits for the CRIU to come
        assert hub.api("POST", "users/ivy/server").status_code in {201, 202}
        killed.result()
        hub.agent(node, but=agent)
    hub.wait(lambda: hub.phase("ivy") in {"running", "suspended"}, 300)
    assert len(hub.pods("ivy")) <= 1
    if hub.phase("ivy") == "suspended":
        hub.wait(lambda: hub.api("POST", "users/ivy/server").status_code in {201, 202})
    work.come_back()
    work.check()
    assert len(hub.pods("ivy")) == 1


def test_a_hub_that_is_replaced_brings_back_what_is_saved(hub, work_of):
    work = work_of("eve")
    hub.suspend("eve")
    where = ("-n", hub.wanted.hub)
    label = "app.kubernetes.io/component=hub"
    hub.kubectl.run(*where, "delete", "pod", "-l", label, "--timeout=120s", seconds=130)
    hub.rolled_out(hub.wanted.hub, "deployment/hub")
    hub.wait(lambda: hub.phase("eve") == "suspended", 300)
    work.come_back()
    work.check()


def test_a_return_waits_while_every_node_is_cordoned(hub, nodes, work_of):
    work = work_of("flo")
    hub.suspend("flo")
    with hub.cordoned(*nodes):
        assert hub.api("POST", "users/flo/server").status_code in {201, 202}
        waiting = hub.wait(lambda: hub.pods("flo"))
        assert "nodeName" not in waiting[0]["spec"]
        assert hub.phase("flo") != "running"
    work.come_back()
    work.check()


def test_a_gpu_that_is_given_back_goes_to_who_waits(hub, nodes, work_of):
    """Both ways: a suspended session holds no GPU, and waits for one on its return."""
    node, others = nodes[0], nodes[1:]
    if not hub.wanted.gpu or hub.gpus(node) != 1:
        pytest.skip(f"needs --cluster-gpu and one nvidia.com/gpu on {node}")
    with hub.cordoned(*others):
        work = work_of("gus")
        hub.user("hal")
        assert hub.api("POST", "users/hal/server").status_code in {201, 202}
        hub.wait(lambda: hub.waits_for_gpu("hal"))
        [first] = hub.wait(lambda: hub.reclaim("GET", "queue").json())
        assert (first["key"]["user"], first["place"]) == ("hal", 1)
        hub.suspend("gus")
        hub.wait(lambda: hub.phase("hal") == "running", 300)
        assert hub.api("POST", "users/gus/server").status_code in {201, 202}
        hub.wait(lambda: hub.waits_for_gpu("gus"))
        hub.suspend("hal")
        work.come_back()
        work.check()
    hub.api("DELETE", "users/hal/server")


def test_the_agents_answer_nobody_but_the_hub(hub, nodes):
    """Without the token, the answer is no; the pods of users may not even get one."""
    name, _ = hub.agent(nodes[0])
    pod = hub.kubectl.json("-n", hub.wanted.agents, "get", "pod", name)
    ask = f"""
import ssl, urllib.request, urllib.error
free = ssl._create_unverified_context()
address = "https://{pod["status"]["podIP"]}:8099"
print(urllib.request.urlopen(address + "/healthz", context=free, timeout=10).status)
try:
    urllib.request.urlopen(address + "/v1/sessions", context=free, timeout=10)
except urllib.error.HTTPError as error:
    print(error.code)
"""
    words = ("exec", "deployment/hub", "-c", "hub", "--", "python3", "-c", ask)
    assert hub.kubectl.run("-n", hub.wanted.hub, *words).split() == ["200", "401"]


def kill_agent(hub, agent):
    """While its CRIU works; it takes the line along by which that was ordered."""
    told = hub.kubectl.tried(
        *("-n", hub.wanted.agents, "exec", agent[0], "--", "python3", "-c"),
        KILL.format(realm=hub.wanted.run),
        seconds=90,
    )
    assert "AssertionError: no CRIU works" not in told, told


def begin_to_suspend(hub, user):
    """Order it, and wait until it is under way (or done, where that was too quick)."""
    hub.wait(lambda: hub.phase(user) == "running")
    answer = hub.reclaim("POST", f"sessions/{user}/-/suspend")
    assert answer.ok, answer.text
    hub.wait(lambda: hub.phase(user) in {"suspending", "releasing", "suspended"})
