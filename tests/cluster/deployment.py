"""What the tests on a cluster deploy: the chart and a Hub, under names of their own.

Pure: objects from files and options, for ``conftest.py`` to apply, and for
``tests/kubernetes_manifests`` to hold against the schemas where there is no cluster.
"""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyterhub_gpu_reclaim.cli import agent_secrets
from tests.cluster import store
from tests.support import helm

PASSWORD = "open sesame"
API_TOKEN = "token-of-the-test-service-0123456789"
HERE = Path(__file__).parent
#: Of the store's login, in the agents' namespace.
LOGIN = "gpu-reclaim-store"
#: Appended to hub_config.py.
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
    run: str
    images: dict[str, str]
    policy: str = "IfNotPresent"
    volume: dict[str, Any] | None = None
    uid: int = 1000
    without: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def hub(self) -> str:
        return f"{self.run}-hub"

    @property
    def agents(self) -> str:
        return f"{self.run}-agents"

    @property
    def values(self) -> dict[str, Any]:
        return {
            "image": {"registry": "given-by-the-options"},
            "hub": {"namespace": self.hub},
            "realm": self.run,
            "store": {"url": f"s3://{store.BUCKET}/hub", "optionsSecret": LOGIN},
            "gpu": {"enabled": self.gpu},
        }


def namespaces(wanted: Wanted) -> list[dict[str, Any]]:
    level = {"pod-security.kubernetes.io/enforce": "privileged"}
    told = [{"name": wanted.agents, "labels": level}, {"name": wanted.hub}]
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": one} for one in told]


def secrets(wanted: Wanted) -> list[dict[str, Any]]:
    """Those of the hook, the store's login and certificate, the proxy's token."""
    host = f"store.{wanted.agents}.svc"
    authority, certificate, key = store.certificate(host)
    names = agent_secrets.Wanted(namespace=wanted.agents, hub_namespace=wanted.hub)
    options = json.dumps(store.options(f"https://{host}:{store.PORT}")).encode()
    login = {"options.json": options, "ca.crt": authority}
    files = {"tls.crt": certificate, "tls.key": key}
    return [
        *agent_secrets.new(names),
        _secret(wanted.agents, LOGIN, login),
        _secret(wanted.agents, "store", files),
        _secret(wanted.hub, "proxy", {"token": os.urandom(16).hex().encode()}),
    ]


def everything(wanted: Wanted) -> list[dict[str, Any]]:
    """The agents, a store, and the Hub with its proxy.

    The store is begun by the tests: before that the agents say what is missing.
    """
    chart = helm.rendered(wanted.values, namespace=wanted.agents, upgrade=True)
    objects = [*chart, *_hub(wanted)]
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
    return objects


def cluster_wide(wanted: Wanted) -> Iterator[str]:
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
    [container] = pod["containers"]
    added = container["securityContext"]["capabilities"]["add"]
    for name in wanted.without:
        added.remove(name)


def _as_hub(pod: dict[str, Any], wanted: Wanted) -> None:
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
    text = (HERE / "hub_config.py").read_text()
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


def _hub(wanted: Wanted) -> list[dict[str, Any]]:
    objects = helm.documents(HERE / "hub.yaml")
    for one in objects:
        for place in [one["metadata"], *one.get("subjects", ())]:
            place["namespace"] = wanted.hub
    return objects


def _secret(namespace: str, name: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": _encoded(files),
    }


def _encoded(files: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(text).decode() for name, text in files.items()}
