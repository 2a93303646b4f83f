"""A Hub with agents on a real cluster; nothing of it stays there.

Run with ``pytest -m cluster`` and KUBECONFIG; the options are in ``options.py``. Two
nodes are needed, and the right to make namespaces, cluster roles and to cordon nodes:
while the tests run, nodes are cordoned, one after the other.
"""

import contextlib
import json
import os
import secrets
import shutil
import time
from urllib.parse import quote

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from demo.user import User
from tests.cluster import deployment, store
from tests.cluster.kubectl import Forward, Kubectl
from tests.cluster.options import ROLES

#: Seconds until a pod runs: an image may have to be pulled.
START = 600


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Several pods for every test: a limit of its own."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def wanted(pytestconfig):
    if "cluster" not in pytestconfig.option.markexpr:
        pytest.skip("needs a cluster: KUBECONFIG=FILE pytest -m cluster")
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG must say which cluster is meant"
    assert shutil.which("kubectl"), "kubectl must be in the PATH"
    option = pytestconfig.getoption
    images = {
        role: option(f"--cluster-{role}-image") or option("--cluster-image")
        for role in ROLES
    }
    volume = option("--cluster-volume")
    return deployment.Wanted(
        run=f"grt-{secrets.token_hex(3)}",
        images=images,
        policy=option("--cluster-pull-policy"),
        volume=json.loads(volume) if volume else None,
        uid=option("--cluster-uid"),
        without=tuple(option("--cluster-without-capability")),
        gpu=option("--cluster-gpu"),
    )


def _patient(http):
    """Ask again when the line to the cluster breaks; never an order that was sent."""
    again = HTTPAdapter(max_retries=Retry(8, status=0, backoff_factor=0.5))
    http.mount("http://", again)
    return http


class ClusterHub:
    def __init__(self, wanted, kubectl):
        self.wanted = wanted
        self.kubectl = kubectl
        self.before_store = ""  #: the agents' log
        self._lines = []
        self._orders = self._line()
        self._http = _patient(requests.Session())

    def _line(self):
        """To the proxy, through the API server.

        It breaks when a user's socket is cut, and no order may break with it, nor what
        another user does: each has a line of their own.
        """
        self._lines.append(Forward(self.wanted.hub, "proxy-public", 80))
        return self._lines[-1]

    def close(self):
        for line in self._lines:
            line.close()

    def log(self):
        hub, agents = self.wanted.hub, self.wanted.agents
        tried = self.kubectl.tried
        return "\n".join(
            [
                tried("-n", hub, "get", "pods", "-o", "wide"),
                tried("-n", agents, "get", "pods", "-o", "wide"),
                tried("-n", hub, "get", "events", "--sort-by=.lastTimestamp")[-4000:],
                tried("-n", hub, "logs", "deployment/hub", "--tail=60"),
                tried(
                    *("-n", agents, "logs", "--prefix", "--tail=40"),
                    *("-l", "app.kubernetes.io/name=gpu-reclaim-agent"),
                ),
            ]
        )

    def wait(self, condition, seconds=120):
        """Wait for a condition; its value. Lines that break meanwhile are no answer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(requests.RequestException):
                value = condition()
                if value:
                    return value
            time.sleep(1)
        raise AssertionError(f"not within {seconds} s\n{self.log()}")

    # --- people and programs
    def user(self, name):
        user = User(self._line().url, name, deployment.PASSWORD)
        _patient(user.http)
        user.login()
        return user

    def api(self, method, path):
        return self._asked(method, f"hub/api/{path}")

    def reclaim(self, method, path, **more):
        return self._asked(method, f"services/gpu-reclaim/api/{path}", **more)

    def _asked(self, method, path, **more):
        token = {"Authorization": f"token {deployment.API_TOKEN}"}
        url = f"{self._orders.url}/{path}"
        return self._http.request(method, url, headers=token, timeout=60, **more)

    def phase(self, user):
        answer = self.reclaim("GET", f"sessions/{quote(user)}/-")
        return answer.json().get("phase") if answer.ok else answer.status_code

    def suspend(self, user):
        self.wait(lambda: self.phase(user) == "running")
        answer = self.reclaim("POST", f"sessions/{quote(user)}/-/suspend")
        assert answer.ok, answer.text
        self.wait(lambda: self.phase(user) == "suspended", 300)
        self.wait(lambda: not self.pods(user))

    # --- the cluster
    def pods(self, user):
        found = self.kubectl.json(
            "-n", self.wanted.hub, "get", "pods", "-l", "gpu-reclaim/incarnation"
        )
        name = "gpu-reclaim/user"
        return [pod for pod in found if pod["metadata"]["annotations"][name] == user]

    def pod(self, user):
        found = self.pods(user)
        assert len(found) == 1, found
        return found[0]

    def gpus(self, node):
        """How many may be asked for there."""
        found = self.kubectl.json("get", "node", node)["status"]["allocatable"]
        return int(found.get("nvidia.com/gpu", 0))

    def waits_for_gpu(self, user):
        """Whether the user's pod is there, and the scheduler finds no GPU for it."""
        return any(
            "Insufficient nvidia.com/gpu" in condition.get("message", "")
            for pod in self.pods(user)
            for condition in pod["status"].get("conditions", ())
        )

    def agent(self, node, *, but=None):
        """Name and restarts of that node's agent, once it is ready and not that one."""
        return self.wait(lambda: self._agent(node, but), 300)

    def _agent(self, node, but):
        found = self.kubectl.json(
            *("-n", self.wanted.agents, "get", "pods"),
            *("-l", "app.kubernetes.io/name=gpu-reclaim-agent"),
            f"--field-selector=spec.nodeName={node}",
        )
        if len(found) != 1 or "deletionTimestamp" in found[0]["metadata"]:
            return None
        [container] = found[0]["status"].get("containerStatuses") or [{"ready": False}]
        if not container["ready"]:
            return None
        agent = (found[0]["metadata"]["name"], container["restartCount"])
        return None if agent == but else agent

    @contextlib.contextmanager
    def cordoned(self, *nodes):
        try:
            for node in nodes:
                self.kubectl.run("cordon", node)
            yield
        finally:
            for node in nodes:
                self.kubectl.tried("uncordon", node)

    @contextlib.contextmanager
    def without_rights(self):
        """The API server refuses all that the Hub asks of its own namespace."""
        where = ("-n", self.wanted.hub)
        taken = [
            binding
            for binding in self.kubectl.json(*where, "get", "rolebindings")
            if any(one["name"] == "hub" for one in binding.get("subjects", ()))
        ]
        assert taken
        for binding in taken:
            own = ("name", "namespace", "labels", "annotations")
            told = binding["metadata"]
            binding["metadata"] = {name: told[name] for name in own if name in told}
        try:
            for binding in taken:
                name = binding["metadata"]["name"]
                self.kubectl.run(*where, "delete", "rolebinding", name)
            yield
        finally:
            self.kubectl.apply(taken)

    @contextlib.contextmanager
    def other_certificate(self):
        """The agents show one of an authority that the Hub does not know."""
        name, where = "gpu-reclaim-agent-tls", ("-n", self.wanted.agents)
        before = self.kubectl.json(*where, "get", "secret", name)
        before["metadata"] = {"name": name, "namespace": self.wanted.agents}
        made = deployment.secrets(self.wanted)
        other = [one for one in made if one["metadata"]["name"] == name]
        try:
            self._show(other)
            yield
        finally:
            self._show([before])

    def _show(self, secret):
        self.kubectl.apply(secret)
        where = ("-n", self.wanted.agents, "rollout", "restart")
        self.kubectl.run(*where, "daemonset/gpu-reclaim-agent")
        self.rolled_out(self.wanted.agents, "daemonset/gpu-reclaim-agent")

    def agents_log(self):
        label = "app.kubernetes.io/name=gpu-reclaim-agent"
        return self.kubectl.tried(
            *("-n", self.wanted.agents, "logs", "--tail=-1", "-l", label),
            "--max-log-requests=50",
        )

    def begin_store(self):
        """What a person does once, in one of the agents.

        Before that they are not ready, and say why; what they have said is kept.
        """
        words = "- not ready: The store of suspended sessions is not there"
        self.before_store = self.wait(
            lambda: words in (told := self.agents_log()) and told, START
        )
        line = (
            'jupyterhub-gpu-reclaim store init --AgentApp.store_url="$STORE_URL"'
            " --AgentApp.master_key_dir=/etc/gpu-reclaim/master-keys"
            " --AgentApp.store_options_file=/etc/gpu-reclaim/store/options.json"
        )
        words = ("exec", "daemonset/gpu-reclaim-agent", "--", "sh", "-c", line)
        tried = self.kubectl.tried
        self.wait(lambda: "The store" in tried("-n", self.wanted.agents, *words), START)

    def rolled_out(self, namespace, *kinds):
        for kind in kinds:
            words = ("-n", namespace, "rollout", "status", kind, f"--timeout={START}s")
            self.kubectl.run(*words, seconds=START + 10)


@pytest.fixture(scope="session")
def nodes(wanted):
    found = [node["metadata"]["name"] for node in Kubectl().nodes()]
    assert len(found) >= 2, f"two nodes that are ready are needed, there are {found}"
    return found


@pytest.fixture(scope="session")
def hub(wanted, nodes, pytestconfig):
    kubectl = Kubectl()
    hub = ClusterHub(wanted, kubectl)
    try:
        kubectl.apply(deployment.namespaces(wanted))
        kubectl.apply(deployment.secrets(wanted))
        kubectl.apply(deployment.everything(wanted))
        hub.rolled_out(wanted.agents, "deployment/store")
        make = ["exec", "deployment/store", "--", "python3", "-W", "ignore", "-c"]
        kubectl.run("-n", wanted.agents, *make, store.MAKE_BUCKET)
        hub.begin_store()
        try:
            hub.rolled_out(wanted.agents, "daemonset/gpu-reclaim-agent")
            hub.rolled_out(wanted.hub, "deployment/proxy", "deployment/hub")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{hub.log()}") from None
        hub.wait(lambda: hub.reclaim("GET", "sessions").ok)
        yield hub
    finally:
        hub.close()
        if not pytestconfig.getoption("--cluster-keep"):
            _remove(wanted, kubectl)


def _remove(wanted, kubectl):
    agents = ("-n", wanted.agents)
    for pod in kubectl.tried(*agents, "get", "pods", "-o", "name").split():
        if pod.startswith("pod/gpu-reclaim-agent"):
            empty = "rm -rf /var/lib/jupyterhub-gpu-reclaim/*"
            kubectl.tried(*agents, "exec", pod, "--", "sh", "-c", empty)
    for name in deployment.cluster_wide(wanted):
        kubectl.tried("delete", "--ignore-not-found", name)
    for namespace in (wanted.hub, wanted.agents):
        words = ("delete", "namespace", namespace, "--ignore-not-found")
        kubectl.tried(*words, "--timeout=300s", seconds=310)
