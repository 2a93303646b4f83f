"""Nodes of the cluster's double: a kubelet, and an agent with the real agent's routes.

A pod whose container begins with our init becomes a place on a machine of the simulator
(``tests/support/simulated_node.py``); its server answers on the pod's address while its
tree runs. What is saved is in one store for all nodes.
"""

import asyncio
import copy
import hashlib
import itertools
import socket
import ssl
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from jupyterhub_gpu_reclaim.service.settings.placement import AGENT_NAME
from jupyterhub_gpu_reclaim.session_init import session_init
from simulation.doubles.machine import Place
from tests.support.certificates import certificate
from tests.support.cluster import NAMESPACE, Cluster, now
from tests.support.simulated_node import TOKEN, simulated_nodes

SERVER_PORT, AGENT_PORT = 8888, 8099
AGENT_LABELS = {"app.kubernetes.io/name": "gpu-reclaim-agent"}
_ADDRESSES = itertools.count(2)


@cache
def agents_certificate() -> Path:
    return certificate(Path(tempfile.mkdtemp(prefix="agents-")), AGENT_NAME)


def address(port: int) -> tuple[str, socket.socket]:
    for number in _ADDRESSES:
        ip = f"127.{77 + number // 60000}.{number // 250 % 250}.{number % 250 + 1}"
        bound = socket.socket()
        bound.setblocking(False)
        try:
            bound.bind((ip, port))
        except OSError:
            bound.close()
            continue
        bound.listen(64)
        return ip, bound
    raise AssertionError


class Node:
    def __init__(self, cluster: Cluster, name: str, labels: dict[str, str]) -> None:
        self.cluster, self.name, self.labels = cluster, name, labels
        self.schedulable = True
        self.lost = False  # its kubelet is silent
        self.rejects: tuple[str, str] | None = None  # reason and message of its kubelet
        self.pods: dict[str, dict[str, Any]] = {}
        self._servers: dict[str, HTTPServer] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._addresses: dict[str, str] = {}
        self._opened = ExitStack()
        self.nodes = (
            cluster.nodes[0].nodes
            if cluster.nodes
            else self._opened.enter_context(simulated_nodes())
        )
        self.simulated = self.nodes.add(name)
        self.agent = self.simulated.agent
        self._agent_server: HTTPServer | None = None
        self._agent_pod: dict[str, Any] = {}
        self.tell(ready=True)
        cluster.nodes.append(self)
        self.start_agent()

    def tell(self, *, ready: bool) -> None:
        condition = {
            "type": "Ready",
            "status": "True" if ready else "Unknown",
            "reason": "KubeletReady" if ready else "NodeStatusUnknown",
            "lastTransitionTime": "2026-11-27T14:02:00Z",
        }
        metadata = {"name": self.name, "labels": self.labels}
        self.cluster.put(
            "nodes", {"metadata": metadata, "status": {"conditions": [condition]}}
        )

    async def close(self) -> None:
        for task in self._watches.values():
            task.cancel()
        for server in [*self._servers.values(), self._agent_server]:
            if server is not None:
                server.stop()
                await server.close_all_connections()
        self._opened.close()

    @property
    def places(self) -> dict[str, Place]:
        return self.simulated.machine.places

    def works(self) -> list[str]:
        """What the sessions there hold in memory."""
        trees = (place.tree for place in self.places.values())
        return [tree.contents for tree in trees if tree is not None]

    # --- the agent's pod
    def start_agent(self, shown: Path | None = None) -> None:
        """A new pod of the DaemonSet, with an address of its own."""
        ip, bound = address(AGENT_PORT)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(shown or agents_certificate())
        self._agent_server = HTTPServer(
            make_application(self.agent, TOKEN), ssl_options=context
        )
        self._agent_server.add_sockets([bound])
        self._agent_pod = {
            "metadata": {
                "name": f"agent-{self.name}-{ip.replace('.', '-')}",
                "namespace": NAMESPACE,
                "labels": dict(AGENT_LABELS),
            },
            "spec": {
                "nodeName": self.name,
                "containers": [{"name": "agent", "image": "agent"}],
            },
            "status": {
                "phase": "Running",
                "podIP": ip,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.cluster.put("pods", self._agent_pod)

    async def stop_agent(self) -> None:
        self.cluster.drop("pods", self._agent_pod)
        await self.silence_agent()

    async def silence_agent(self) -> None:
        """It does not answer any more; its pod still looks well."""
        if self._agent_server is not None:
            self._agent_server.stop()
            await self._agent_server.close_all_connections()

    # --- the kubelet
    def run(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if self.rejects is not None:
            reason, message = self.rejects
            pod = copy.deepcopy(pod)
            pod["status"] = {"phase": "Failed", "reason": reason, "message": message}
            self.cluster.put("pods", pod)
            return
        self.pods[uid] = pod
        init = _init_of(pod)
        if init is not None:
            self._place(pod, init)
        ip, bound = address(SERVER_PORT)
        server = HTTPServer(_server_of(self, uid))
        server.add_sockets([bound])
        self._servers[uid] = server
        self._addresses[uid] = ip
        self._report(pod, ip)
        self._watches[uid] = asyncio.get_running_loop().create_task(
            self._follow(pod, ip, init)
        )

    def _place(self, pod: dict[str, Any], init: Any) -> None:
        env = {e["name"]: e.get("value", "") for e in notebook(pod).get("env", [])}
        login = (env.get("JUPYTERHUB_API_TOKEN", ""), SERVER_PORT)
        whose = {"session": init.session, "account": init.account}
        place: dict[str, Any] = {"pod": pod["metadata"]["uid"], **whose}
        key, name = SessionKey(init.user, init.server), init.incarnation
        if init.holding:
            self.simulated.hold(key, name, **place)
        else:
            self.simulated.run(key, f"work of {name}", name, login=login, **place)

    async def _follow(self, pod: dict[str, Any], ip: str, init: Any) -> None:
        while init is None or init.incarnation in self.places:
            await asyncio.sleep(0.02)
        killed = {"exitCode": 137, "reason": "Error"}
        self._report(pod, ip, killed, ("notebook",))

    def _report(
        self,
        pod: dict[str, Any],
        ip: str,
        ended: dict[str, Any] | None = None,
        which: tuple[str, ...] = (),
    ) -> None:
        known = self.cluster.pod(pod["metadata"]["name"])
        if known is None or known["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        pod = copy.deepcopy(known)
        names = [container["name"] for container in pod["spec"]["containers"]]
        told = pod["status"].get("containerStatuses") or ()
        states = {each["name"]: each["state"] for each in told}
        for name in names:
            if "terminated" in states.setdefault(name, {"running": {}}):
                continue
            if ended is not None and name in (which or names):
                states[name] = {"terminated": {**ended, "finishedAt": now()}}
        over = [states[name].get("terminated") for name in names]
        well = all(each and each["exitCode"] == 0 for each in over)
        pod["status"] = {
            "phase": ("Succeeded" if well else "Failed") if all(over) else "Running",
            "podIP": ip,
            "conditions": pod["status"].get("conditions")
            or [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": digest(container["image"]),
                    "ready": "running" in states[container["name"]],
                    "restartCount": 0,
                    "state": states[container["name"]],
                }
                for container in pod["spec"]["containers"]
            ],
        }
        self.cluster.put("pods", pod)

    def end(self, pod: dict[str, Any]) -> None:
        """The pod was deleted: its containers end in peace, unless they have."""
        uid = pod["metadata"]["uid"]
        for place in [p for p in self.places.values() if p.pod == uid]:
            self.simulated.machine.end(place, "the kubelet")
        if (watch := self._watches.pop(uid, None)) is not None:
            watch.cancel()
            peace = {"exitCode": 0, "reason": "Completed"}
            self._report(pod, self._addresses[uid], peace)

    def forget(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        self.pods.pop(uid, None)
        task, server = self._watches.pop(uid, None), self._servers.pop(uid, None)
        if task is not None:
            task.cancel()
        if server is not None:
            server.stop()

    def serves(self, uid: str) -> bool:
        return any(
            place.pod == uid and place.tree is not None and place.tree.runs
            for place in self.places.values()
        )


def _server_of(node: Node, uid: str) -> Application:
    class Server(RequestHandler):
        def get(self) -> None:
            if not node.serves(uid):
                self.request.connection.stream.close()  # type: ignore[attr-defined]
                return
            self.set_header("X-JupyterHub-Version", "6.1.1")
            self.finish({"pod": uid})

    return Application([(".*", Server)])


def _init_of(pod: dict[str, Any]) -> Any:
    """The session's init in a pod, as its command line says; None without one."""
    container = notebook(pod)
    words = [*container.get("command", ()), *container.get("args", ())]
    with suppress(ValueError):
        at = words.index("-c")
        return session_init.parse([w.replace("$$", "$") for w in words[at + 2 :]])
    return None


def notebook(pod: dict[str, Any]) -> dict[str, Any]:
    containers = pod["spec"]["containers"]
    return next((c for c in containers if c["name"] == "notebook"), {})


def digest(image: str) -> str:
    if "@sha256:" in image:
        return image
    name = image.partition(":")[0]
    return f"{name}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"
