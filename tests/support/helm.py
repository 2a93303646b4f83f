"""What Helm makes of ``charts/jupyterhub-gpu-reclaim``, which is all that is applied.

The program is the one that ``scripts/helm`` has put into ``.cache``, else that in the
PATH.
"""

import copy
import json
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ran import ran

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts" / "jupyterhub-gpu-reclaim"
OURS = ROOT / ".cache" / "helm"
PROGRAM = str(OURS) if OURS.exists() else shutil.which("helm")
needed = pytest.mark.skipif(PROGRAM is None, reason="needs Helm: scripts/helm")
#: The least that the chart asks for.
LEAST = {
    "image": {"registry": "registry.example.org"},
    "store": {"url": "s3://sessions/hub"},
}
HOOK = "helm.sh/hook"


def merged(base: Any, more: Any) -> Any:
    """As Helm does it: mappings are merged, all else is replaced."""
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return {**base, **{name: merged(base.get(name), more[name]) for name in more}}


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in loaded(path.read_text()) if one]


def loaded(text: str) -> list[Any]:
    """As ``yaml.safe_load_all``, in a tenth of its time."""
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def asked(*words: str, values: str) -> subprocess.CompletedProcess[str]:
    assert PROGRAM is not None, "needs Helm: scripts/helm"
    return ran([PROGRAM, *words, "-f", "-"], input=values, timeout=60)


@cache
def _answer(values: str, namespace: str, *words: str) -> tuple[int, str, str]:
    given = ("gpu-reclaim", str(FOLDER), "-n", namespace)
    done = asked(*words[:1], *given, *words[1:], values=values)
    return done.returncode, done.stdout, done.stderr


def _ask(
    values: Mapping[str, Any] | None, namespace: str, *words: str
) -> tuple[int, str, str]:
    wanted = LEAST if values is None else values
    return _answer(json.dumps(wanted), namespace, *words)


def text(
    values: Mapping[str, Any] | None = None,
    *,
    namespace: str = "gpu-reclaim",
    upgrade: bool = False,
) -> str:
    words = ("template", "--is-upgrade") if upgrade else ("template",)
    status, output, errors = _ask(values, namespace, *words)
    assert status == 0, errors
    return output


def rendered(
    values: Mapping[str, Any] | None = None,
    *,
    namespace: str = "gpu-reclaim",
    upgrade: bool = False,
) -> list[dict[str, Any]]:
    made = loaded(text(values, namespace=namespace, upgrade=upgrade))
    return [one for one in made if one and not hook_of(one)]


def hooks(
    which: str, values: Mapping[str, Any] | None = None, **more: Any
) -> list[dict[str, Any]]:
    made = loaded(text(values, **more))
    return [one for one in made if one and which in hook_of(one).split(",")]


def hook_of(one: dict[str, Any]) -> str:
    return str((one["metadata"].get("annotations") or {}).get(HOOK, ""))


def refusal(values: Mapping[str, Any], *, namespace: str = "gpu-reclaim") -> str:
    """Why Helm does not take those values."""
    status, _, errors = _ask(values, namespace, "template")
    assert status != 0
    return errors


def notes(
    values: Mapping[str, Any] | None = None, *, namespace: str = "gpu-reclaim"
) -> str:
    words = ("install", "--dry-run=client", "-o", "json")
    status, output, errors = _ask(values, namespace, *words)
    assert status == 0, errors
    return str(json.loads(output)["info"]["notes"])


def hub_values(values: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(notes(values, **more)))


def one_of(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [one for one in objects if one["kind"] == kind]
    return copy.deepcopy(found)


def agents(
    values: Mapping[str, Any] | None = None, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = one_of(rendered(values, **more), "DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    return pod, container
