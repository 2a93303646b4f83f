"""Helm, where there is one: what it makes of the chart of ``etc/kubernetes``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.kustomized import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``GPU_RECLAIM_HELM`` names another one than that in the PATH.
PROGRAM = os.environ.get("GPU_RECLAIM_HELM") or shutil.which("helm")
needed = pytest.mark.skipif(PROGRAM is None, reason="helm is not installed")
#: The least that the chart asks for: what ``base`` has.
LEAST = {
    "image": {"repository": "jupyterhub-gpu-reclaim-agent"},
    "store": {"url": "s3://sessions/hub"},
}


def asked(
    values: Mapping[str, Any], namespace: str
) -> subprocess.CompletedProcess[str]:
    """``helm template`` with those values, whatever it answers."""
    assert PROGRAM is not None
    return subprocess.run(
        [
            *(PROGRAM, "template", "gpu-reclaim", str(FOLDER)),
            *("-n", namespace, "-f", "-"),
        ],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def rendered(
    values: Mapping[str, Any], *, namespace: str = "gpu-reclaim"
) -> list[dict[str, Any]]:
    """The objects, with those of ``helm test``."""
    done = asked(values, namespace)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def refusal(values: Mapping[str, Any], *, namespace: str = "gpu-reclaim") -> str:
    """Why Helm does not take those values."""
    done = asked(values, namespace)
    assert done.returncode != 0
    return done.stderr


def is_test(one: dict[str, Any]) -> bool:
    """Whether only ``helm test`` makes it."""
    return "helm.sh/hook" in one["metadata"].get("annotations", {})
