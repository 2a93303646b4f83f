"""A double of a cluster: objects with their history, a scheduler, and nodes.

``Cluster`` answers on 127.0.0.1 what KubeSpawner and our service ask (``cluster_api``),
in the API's own words: versions, selectors, watches, preconditions, graces, pieces of
lists. Every object that it takes or makes is held against the real schemas
(``violations``). Its faults are attributes named by what fails. Pods do not run
programs: a ``Node`` (``nodes.py``) is told of them.
"""

import asyncio
import copy
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from tests.kube.schemas import problems
from tests.support.cluster_api import KINDS, application

NAMESPACE = "hub"


class Cluster:
    def __init__(self) -> None:
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {
            resource: {} for resource in KINDS
        }
        self.version = 100
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.oldest = 100  # a watch from before that is "too old" (410)
        self.violations: list[str] = []
        self.calls: list[tuple[str, str, str]] = []  # who, verb, resource@namespace
        self.nodes: list[Any] = []
        self.news = asyncio.Event()
        self.server: HTTPServer | None = None
        self.url = ""
        # --- faults
        self.throttled = 0  # so many requests are answered 429
        self.down = 0  # so many requests are answered 503
        self.cuts = 0  # so many watches are cut in the middle of a line
        self.delete_seconds = 0.02  # what a kubelet needs to end a container
        self.gpus = 8  # that are free
        self.refusal = ""  # of each creation of a pod (403), in these words
        self.forbidden: set[tuple[str, str]] = set()  # (verb, resource)

    # --- life
    def open(self) -> str:
        self.server = HTTPServer(application(self))
        self.server.add_sockets(sockets := bind_sockets(0, "127.0.0.1"))
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        return self.url

    async def close(self) -> None:
        self.cut_watches()
        for node in self.nodes:
            await node.close()
        if self.server is not None:
            self.server.stop()
            await self.server.close_all_connections()

    def kubeconfig(self, user: str) -> str:
        """A file's text; ``user`` is who the calls are counted for."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "double", "cluster": {"server": self.url}}],
                "users": [{"name": user, "user": {"token": user}}],
                "contexts": [
                    {"name": "it", "context": {"cluster": "double", "user": user}}
                ],
                "current-context": "it",
            }
        )

    # --- faults
    def cut_watches(self) -> None:
        """Every watch that is open breaks in the middle of a line."""
        self.cuts = 1 << 30
        self._wake()

        def whole_again() -> None:
            self.cuts = 0

        asyncio.get_running_loop().call_later(0.05, whole_again)

    async def go_away(self) -> None:
        """Nobody listens any more, as while it is replaced."""
        if self.server is not None:
            self.server.stop()
            await self.server.close_all_connections()

    def come_back(self) -> None:
        self.server = HTTPServer(application(self))
        port = int(self.url.rpartition(":")[2])
        self.server.add_sockets(bind_sockets(port, "127.0.0.1"))

    def forget_history(self) -> None:
        """What was before now is too old for a watch (410)."""
        self.oldest = self.version + 1
        self.version += 2
        self._wake()

    # --- objects
    def put(self, resource: str, thing: dict[str, Any]) -> dict[str, Any]:
        metadata = thing["metadata"]
        where = (metadata.get("namespace", ""), metadata["name"])
        known = self.objects[resource].get(where)
        self.version += 1
        if known is None:
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
        metadata["resourceVersion"] = str(self.version)
        thing.setdefault("apiVersion", "v1")
        thing.setdefault("kind", KINDS[resource])
        self.violations += problems(thing)
        self.objects[resource][where] = thing
        kind = "ADDED" if known is None else "MODIFIED"
        self._tell(kind, resource, thing)
        return thing

    def drop(self, resource: str, thing: dict[str, Any]) -> None:
        where = (thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
        known = self.objects[resource].get(where)
        if known is None or known["metadata"]["uid"] != thing["metadata"]["uid"]:
            return
        del self.objects[resource][where]
        self.version += 1
        known = copy.deepcopy(known)
        known["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", resource, known)

    def _tell(self, kind: str, resource: str, thing: dict[str, Any]) -> None:
        self.history.append((self.version, kind, resource, copy.deepcopy(thing)))
        self._wake()

    def _wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def pod(self, name: str) -> dict[str, Any] | None:
        return self.objects["pods"].get((NAMESPACE, name))

    def session_pods(self) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.objects["pods"].values()
            if "gpu-reclaim/incarnation" in (pod["metadata"].get("labels") or {})
        ]

    def say(self, pod: dict[str, Any], reason: str, message: str) -> None:
        name = pod["metadata"]["name"]
        self.put(
            "events",
            {
                "metadata": {
                    "name": f"{name}.{uuid.uuid4().hex[:8]}",
                    "namespace": pod["metadata"]["namespace"],
                },
                "involvedObject": {
                    "kind": "Pod",
                    "name": name,
                    "uid": pod["metadata"]["uid"],
                },
                "type": "Normal" if reason != "FailedScheduling" else "Warning",
                "reason": reason,
                "message": message,
                "lastTimestamp": now(),
                "eventTime": None,
            },
        )

    # --- scheduler
    def schedule(self, pod: dict[str, Any]) -> None:
        wanted = pod["spec"].get("nodeSelector") or {}
        fitting = [
            node
            for node in self.nodes
            if node.schedulable and wanted.items() <= node.labels.items()
        ]
        gpu = _gpus(pod)
        why = ""
        if not fitting:
            why = f"0/{len(self.nodes)} nodes are available: no node matches"
        elif gpu > self.gpus:
            why = (
                f"0/{len(self.nodes)} nodes are available: Insufficient nvidia.com/gpu"
            )
        if why:
            pod["status"] = {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": why,
                    }
                ],
            }
            self.put("pods", pod)
            self.say(pod, "FailedScheduling", why)
            return
        self.gpus -= gpu
        avoided = _avoided(pod)
        node = min(fitting, key=lambda node: (node.name in avoided, len(node.pods)))
        pod["spec"]["nodeName"] = node.name
        pod["status"] = {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
        }
        self.put("pods", pod)
        self.say(pod, "Scheduled", f"Successfully assigned to {node.name}")
        node.run(pod)

    def schedule_again(self) -> None:
        for pod in list(self.objects["pods"].values()):
            waits = pod["status"].get("phase") == "Pending"
            if waits and "nodeName" not in pod["spec"]:
                self.schedule(copy.deepcopy(pod))

    # --- end of a pod
    def delete_pod(self, pod: dict[str, Any], grace: int) -> None:
        """As the API server does it: what no kubelet has to end is gone at once.

        A second deletion may shorten the grace of the first.
        """
        name = pod["spec"].get("nodeName", "")
        if grace == 0 and not self._is_lost(name):
            self.violations.append("a pod was deleted by force")
        if not name or pod["status"].get("phase") in {"Succeeded", "Failed"}:
            grace = 0
        known = pod["metadata"].get("deletionGracePeriodSeconds")
        if known is not None and grace >= known:
            return
        pod = self._stamp(pod, now(grace), grace)
        if grace == 0:
            self._remove(pod)
        elif known is None:
            asyncio.get_running_loop().create_task(self._end(pod))

    def _stamp(self, pod: dict[str, Any], at: str, grace: int) -> dict[str, Any]:
        pod = copy.deepcopy(pod)
        pod["metadata"]["deletionTimestamp"] = at
        pod["metadata"]["deletionGracePeriodSeconds"] = grace
        return self.put("pods", pod)

    def _remove(self, pod: dict[str, Any]) -> None:
        for node in self.nodes:
            if node.name == pod["spec"].get("nodeName") and not node.lost:
                self.gpus += _gpus(pod)
                node.forget(pod)
        self.drop("pods", pod)
        self.schedule_again()

    def _is_lost(self, name: str) -> bool:
        return any(node.name == name and node.lost for node in self.nodes)

    def evict(self, pod: dict[str, Any], grace: int = 30) -> None:
        """As ``kubectl drain`` has it done: the condition first, then the deletion."""
        pod = copy.deepcopy(pod)
        told = pod["status"].get("conditions") or []
        disruption = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        pod["status"]["conditions"] = [*told, disruption]
        self.put("pods", pod)
        self.delete_pod(pod, grace)

    async def _end(self, pod: dict[str, Any]) -> None:
        """As the kubelet does it: when the containers are dead it deletes once more.

        The API server sets the time of that second deletion, without a grace, in the
        place of the first one's: a second after the containers' end (1.36, watched).
        """
        await asyncio.sleep(self.delete_seconds)
        for node in self.nodes:
            if node.name == pod["spec"]["nodeName"] and not node.lost:
                node.end(pod)
                dead = self.pod(pod["metadata"]["name"])
                if dead and dead["metadata"]["uid"] == pod["metadata"]["uid"]:
                    self._remove(self._stamp(dead, now(1), 0))


def _avoided(pod: dict[str, Any]) -> set[str]:
    rules = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return {
        name
        for term in terms
        for field in term["preference"].get("matchFields") or ()
        if (field["key"], field["operator"]) == ("metadata.name", "NotIn")
        for name in field["values"]
    }


def _gpus(pod: dict[str, Any]) -> int:
    return sum(
        int((c.get("resources") or {}).get("limits", {}).get("nvidia.com/gpu", 0))
        for c in pod["spec"]["containers"]
    )


def now(later: int = 0) -> str:
    at = datetime.now(UTC) + timedelta(seconds=later)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
