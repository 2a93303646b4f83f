"""A node of the cluster's double that runs what its pods say: runc, and a real agent.

One home for everybody, bound at ``/home/ann``. Nothing is pulled: the root of every
container is this machine's, under an overlay.
"""

import asyncio
import copy
import subprocess
from pathlib import Path
from typing import Any

from tests.support.cluster import NAMESPACE, Cluster
from tests.support.containers import ENTRY_POINT, Pod
from tests.support.nodes import AGENT_LABELS, digest, notebook


class KubePod(Pod):
    """A container with the command and the environment of a pod's object."""

    def __init__(self, folder: Path, home: Path, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        super().__init__(folder, "start", home=home)

    @property
    def uid(self) -> str:
        return str(self._manifest["metadata"]["uid"])

    @uid.setter
    def uid(self, _: str) -> None:
        """Not our own choice."""

    def _write_bundle(self, words, home, env, memory, user) -> None:
        asked = notebook(self._manifest)
        words = asked.get("command") or [*ENTRY_POINT]
        words = [*words, *(asked.get("args") or ())]
        env = {each["name"]: each.get("value") or "" for each in asked["env"]}
        words = [word.replace("$$", "$") for word in words]
        super()._write_bundle(words, home, env, memory, user)

    def _connect(self, pid: int) -> None:
        super()._connect(pid)
        near = self.ip.rpartition(".")[0] + f".{int(self.ip.rpartition('.')[2]) - 1}"
        inside = ("nsenter", "-t", str(pid), "-n")
        route = ("ip", "route", "add", "default", "via", near)
        subprocess.run([*inside, *route], check=True)


class RealNode:
    def __init__(
        self, cluster: Cluster, folder: Path, agent: tuple[str, int], name: str = "real"
    ) -> None:
        self.cluster, self.folder, self.name = cluster, folder, name
        self.labels = {"kubernetes.io/hostname": name}
        self.schedulable, self.lost = True, False
        self.pods: dict[str, dict[str, Any]] = {}
        self.containers: dict[str, KubePod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        (folder / "home").mkdir(exist_ok=True)
        cluster.put("nodes", {"metadata": {"name": name, "labels": self.labels}})
        cluster.nodes.append(self)
        cluster.put(
            "pods",
            {
                "metadata": {
                    "name": "agent-0",
                    "namespace": NAMESPACE,
                    "labels": dict(AGENT_LABELS),
                },
                "spec": {
                    "nodeName": name,
                    "containers": [{"name": "agent", "image": "agent"}],
                },
                "status": {"phase": "Running", "podIP": agent[0]},
            },
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for container in self.containers.values():
            container.delete()

    def run(self, pod: dict[str, Any]) -> None:
        self.pods[pod["metadata"]["uid"]] = pod
        task = asyncio.get_running_loop().create_task(self._follow(pod))
        self._tasks.add(task)

    async def _follow(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        home = self.folder / "home"
        made = await asyncio.to_thread(KubePod, self.folder, home, pod)
        self.containers[uid] = made
        self._report(pod, made, ended=False)
        while made.alive:
            await asyncio.sleep(0.05)
        self._report(pod, made, ended=True)

    def _report(self, pod: dict[str, Any], made: KubePod, *, ended: bool) -> None:
        known = self.cluster.pod(pod["metadata"]["name"])
        if known is None or known["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        pod = copy.deepcopy(known)
        running: dict[str, Any] = {"running": {}}
        state = {"terminated": {"exitCode": 137}} if ended else running
        image = notebook(pod)["image"]
        pod["status"] = {
            "phase": "Failed" if ended else "Running",
            "podIP": made.ip,
            "containerStatuses": [
                {
                    "name": "notebook",
                    "image": image,
                    "imageID": digest(image),
                    "ready": not ended,
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        self.cluster.put("pods", pod)

    def end(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        self.pods.pop(uid, None)
        made = self.containers.pop(uid, None)
        if made is not None:
            made.delete()

    forget = end  #: nothing else is left of a pod
