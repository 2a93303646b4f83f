"""What ``kubectl kustomize`` makes of ``etc/kubernetes``, as far as that uses it.

Resources, components, JSON patches and images; no more. Where kubectl is installed, a
test compares it with the real thing (``tests/kubernetes_manifests``).
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "etc" / "kubernetes"
#: The name that the manifests have for the agent's image.
AGENT_IMAGE = "jupyterhub-gpu-reclaim-agent"


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of manifests."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def built(*components: str) -> list[dict[str, Any]]:
    """The base with components (``without-gpu``, ``store-volume``), without images."""
    return copy.deepcopy(_built(*components))


@cache
def _built(*components: str) -> list[dict[str, Any]]:
    objects = _resources(FOLDER / "base")
    for name in components:
        wanted = yaml.safe_load((FOLDER / name / "kustomization.yaml").read_text())
        objects += _resources(FOLDER / name)
        for patch in wanted["patches"]:
            steps = yaml.safe_load((FOLDER / name / patch["path"]).read_text())
            target = patch["target"]
            [at] = [
                at
                for at, one in enumerate(objects)
                if one["kind"] == target["kind"]
                and one["metadata"]["name"] == target["name"]
            ]
            objects[at] = patched(objects[at], steps)
    return objects


def _resources(folder: Path) -> list[dict[str, Any]]:
    wanted = yaml.safe_load((folder / "kustomization.yaml").read_text())
    names = wanted.get("resources", ())
    return [one for name in names for one in documents(folder / name)]


def patched(thing: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """A copy with a JSON patch (RFC 6902) applied; KeyError where it does not fit."""
    thing = copy.deepcopy(thing)
    for step in steps:
        *path, last = step["path"].removeprefix("/").split("/")
        at: Any = thing
        for name in path:
            at = at[_index(at, name)]
        where = _index(at, last)
        if step["op"] == "test":
            if at[where] != step["value"]:
                raise KeyError(f"{step['path']} is {at[where]!r}")
        elif step["op"] == "remove":
            del at[where]
        elif step["op"] == "replace":
            at[where]  # it must be there
            at[where] = step["value"]
        else:
            raise KeyError(step["op"])
    return thing


def _index(at: Any, name: str) -> Any:
    return int(name) if isinstance(at, list) else name
