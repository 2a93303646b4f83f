"""What the tests on a cluster deploy: ``etc/kubernetes`` under names of their own.

Pure: objects from files and options, for ``conftest.py`` to apply, and for
``tests/kubernetes_manifests`` to hold against the schemas where there is no cluster.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster import store
from tests.support.kustomized import FOLDER, built, documents

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "open sesame"
API_TOKEN = "token-of-the-test-service-0123456789"
#: Appended to etc/kubernetes/hub/jupyterhub_config.py.
CONFIG = """
c.DummyAuthenticator.password = {password!r}
c.Authenticator.admin_users = {{"admin"}}
c.JupyterHub.services.append({{"name": "tests", "api_token": {api_token!r}}})
c.JupyterHub.load_roles.append({{
    "name": "tests",
    "services": ["tests"],
    "scopes": [
        "admin:users", "admin:servers", "tokens", "admin:server_state",
        "custom:gpu-reclaim:manage", "access:services!service=gpu-reclaim",
    ],
}})
c.JupyterHub.services[0]["command"] += [
    "--ReclaimService.sample_interval=2",
]
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = {policy!r}
c.KubeSpawner.uid = {uid}
c.KubeSpawner.args = {args!r}
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.mem_guarantee = "256M"
c.KubeSpawner.extra_resource_limits = {resources!r}
c.KubeSpawner.environment.update({{"SHELL": "/bin/bash", "HOME": "/home/jovyan"}})
c.SessionPodSpawner.realm = {realm!r}
"""
#: Homes on the volume that is given, whose folders the kubelet makes for root.
HOMES = """
c.KubeSpawner.storage_pvc_ensure = False
c.KubeSpawner.volumes = [{{"name": "home", **{volume!r}}}]
c.KubeSpawner.volume_mounts = [{{
    "name": "home", "mountPath": "/home/jovyan",
    "subPath": "{run}/homes/{{user_server}}",
}}]
c.KubeSpawner.init_containers = [{{
    "name": "own-the-home", "image": {image!r}, "imagePullPolicy": {policy!r},
    "command": ["chown", "{uid}:100", "/home/jovyan"],
    "securityContext": {{"runAsUser": 0}},
    "volumeMounts": c.KubeSpawner.volume_mounts,
}}]
"""


@dataclass(frozen=True)
class Wanted:
    """The options, and a name for this run."""

    run: str
    images: dict[str, str]
    policy: str = "IfNotPresent"
    volume: dict[str, Any] | None = None
    uid: int = 1000
    without: tuple[str, ...] = ()
    gpu: bool = False
    names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        names = {"jupyterhub": f"{self.run}-hub", "gpu-reclaim": f"{self.run}-agents"}
        object.__setattr__(self, "names", names)

    @property
    def hub(self) -> str:
        """The namespace of the Hub and the sessions."""
        return self.names["jupyterhub"]

    @property
    def agents(self) -> str:
        """The namespace of the agents and the store."""
        return self.names["gpu-reclaim"]


def namespaces(wanted: Wanted) -> list[dict[str, Any]]:
    """First of all."""
    agents = [o for o in _renamed(built(), wanted) if o["kind"] == "Namespace"]
    metadata = {"name": wanted.hub}
    return [*agents, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}]


def secrets(wanted: Wanted) -> list[dict[str, Any]]:
    """What make-secrets makes, the store's login and certificate, the proxy's token."""
    host = f"store.{wanted.agents}.svc"
    authority, certificate, key = store.certificate(host)
    done = subprocess.run(
        [FOLDER / "make-secrets"],
        env={**os.environ, "AGENTS": wanted.agents, "HUB": wanted.hub},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    made = list(yaml.safe_load_all(done.stdout))
    [login] = [one for one in made if one["metadata"]["name"] == "gpu-reclaim-store"]
    options = json.dumps(store.options(f"https://{host}:{store.PORT}")).encode()
    login["data"] = _encoded({"options.json": options, "ca.crt": authority})
    files = {"tls.crt": certificate, "tls.key": key}
    return [
        *made,
        _secret(wanted.agents, "store", files),
        _secret(wanted.hub, "proxy", {"token": os.urandom(16).hex().encode()}),
    ]


def everything(wanted: Wanted) -> list[dict[str, Any]]:
    """The agents, a store, and the Hub with its proxy."""
    components = () if wanted.gpu else ("without-gpu",)
    given = [*built(*components), *documents(FOLDER / "hub" / "hub.yaml")]
    objects = _renamed(given, wanted)
    objects += store.objects(wanted.agents, wanted.images["store"])
    objects.append(_hub_config(wanted))
    if wanted.volume:
        objects = [one for one in objects if one["kind"] != "PersistentVolumeClaim"]
    for one in objects:
        for pod, name in _pods(one):
            for container in pod["containers"]:
                container["image"] = wanted.images[name]
                container["imagePullPolicy"] = wanted.policy
            if name == "agent":
                _as_agent(pod, wanted)
            if name == "hub" and wanted.volume:
                _as_hub(pod, wanted)
    return [one for one in objects if one["kind"] != "Namespace"]


def cluster_wide(wanted: Wanted) -> Iterator[str]:
    """What goes with no namespace, as ``kind/name``."""
    for one in everything(wanted):
        if one["kind"].startswith("Cluster"):
            yield f"{one['kind'].lower()}/{one['metadata']['name']}"


# --- parts


def _pods(one: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The template of its pods, with the name of the first container."""
    template = (one.get("spec") or {}).get("template")
    if template:
        yield template["spec"], template["spec"]["containers"][0]["name"]


def _as_agent(pod: dict[str, Any], wanted: Wanted) -> None:
    """A realm and a state folder of this run; without what the nodes do not have."""
    [container] = pod["containers"]
    container["args"].append(f"--AgentApp.realm={wanted.run}")
    added = container["securityContext"]["capabilities"]["add"]
    for name in wanted.without:
        added.remove(name)
    [state] = [volume for volume in pod["volumes"] if volume["name"] == "state"]
    state["hostPath"]["path"] = f"/var/lib/{wanted.run}"


def _as_hub(pod: dict[str, Any], wanted: Wanted) -> None:
    """Its state on the volume that is given."""
    [container] = pod["containers"]
    [state] = [v for v in pod["volumes"] if v["name"] == "state"]
    del state["persistentVolumeClaim"]
    state.update(wanted.volume or {})
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "state"]
    mount["subPath"] = f"{wanted.run}/hub"
    pod["initContainers"] = [
        {
            "name": "own-the-state",
            "image": container["image"],
            "imagePullPolicy": wanted.policy,
            "command": ["chown", "1000:1000", mount["mountPath"]],
            "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
            "volumeMounts": [mount],
        }
    ]


def _hub_config(wanted: Wanted) -> dict[str, Any]:
    text = (FOLDER / "hub" / "jupyterhub_config.py").read_text()
    before = text
    text = text.replace('"gpu-reclaim"', repr(wanted.agents))
    assert text != before, "the namespace of the agents is said in another way"
    facts = {
        "password": PASSWORD,
        "api_token": API_TOKEN,
        "image": wanted.images["session"],
        "policy": wanted.policy,
        "uid": wanted.uid,
        "args": ["--allow-root"] if wanted.uid == 0 else [],
        "resources": {"nvidia.com/gpu": "1"} if wanted.gpu else {},
        "realm": wanted.run,
        "run": wanted.run,
        "volume": wanted.volume,
    }
    text += CONFIG.format(**facts)
    if wanted.volume:
        text += HOMES.format(**facts)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hub", "namespace": wanted.hub},
        "data": {"jupyterhub_config.py": text},
    }


def _renamed(objects: list[dict[str, Any]], wanted: Wanted) -> list[dict[str, Any]]:
    """The same in this run's namespaces; what has none, under a name of this run."""
    renamed = [_in_namespaces(one, wanted.names) for one in objects]
    for one in renamed:
        if one["kind"] == "Namespace":
            one["metadata"]["name"] = wanted.names[one["metadata"]["name"]]
        if one["kind"].startswith("Cluster"):
            one["metadata"]["name"] += f"-{wanted.run}"
        if one.get("roleRef", {}).get("kind") == "ClusterRole":
            one["roleRef"]["name"] += f"-{wanted.run}"
    return renamed


def _in_namespaces(thing: Any, names: dict[str, str]) -> Any:
    if isinstance(thing, list):
        return [_in_namespaces(one, names) for one in thing]
    if not isinstance(thing, dict):
        return thing
    return {
        name: names[value]
        if name in {"namespace", "kubernetes.io/metadata.name"}
        else _in_namespaces(value, names)
        for name, value in thing.items()
    }


def _secret(namespace: str, name: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": _encoded(files),
    }


def _encoded(files: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(text).decode() for name, text in files.items()}
