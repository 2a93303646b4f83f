"""Writes the reference pages from the code: reasons and settings.

.venv/bin/python docs/generate.py           writes docs/reference/
.venv/bin/python docs/generate.py --check   fails when they are out of date
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.agent.app import AgentApp
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.service.app import ReclaimService
from jupyterhub_gpu_reclaim.spawner.kube import ReclaimKubeSpawner
from jupyterhub_gpu_reclaim.spawner.local import ReclaimLocalSpawner

if TYPE_CHECKING:
    from traitlets import TraitType
    from traitlets.config import Configurable

REFERENCE = Path(__file__).parent / "reference"
CONFIGURED = {
    "The policy": [IdlePolicy, Guards],
    "The service": [ReclaimService],
    "The local spawner": [ReclaimLocalSpawner],
    "The spawner on Kubernetes": [ReclaimKubeSpawner],
    "The agent": [AgentApp],
}


def reasons() -> str:
    """Every reason code with its sentence and what to do."""
    lines = [
        "# Reasons",
        "",
        "Every refusal, failure and veto has a stable code and a sentence. This page",
        "is generated from `jupyterhub_gpu_reclaim/reasons.py`.",
        "",
        "| code | sentence | what to do | worth trying again |",
        "|---|---|---|---|",
    ]
    for reason in Reason:
        cells = (
            f"`{reason.value}`",
            reason.template,
            reason.hint,
            "yes" if reason.retryable else "",
        )
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def own_traits(configured: type[Configurable]) -> dict[str, TraitType[object, object]]:
    """The settings that the package itself defines for a class."""
    ours = [
        kind
        for kind in inspect.getmro(configured)
        if kind.__module__.startswith("jupyterhub_gpu_reclaim")
    ]
    return {
        name: trait
        for name, trait in sorted(configured.class_traits(config=True).items())
        if any(name in vars(kind) for kind in ours)
    }


def settings() -> str:
    """Every setting with its default and help."""
    lines = [
        "# Settings",
        "",
        "Generated from the code. The policy's and the service's settings go into",
        "`configure(c, …)` or its `service_options`; the spawner's into",
        "`jupyterhub_config.py`; the agent's on its command line or into its file.",
    ]
    for title, classes in CONFIGURED.items():
        lines += ["", f"## {title}"]
        for configured in classes:
            for name, trait in own_traits(configured).items():
                default = trait.default_value_repr()
                lines += ["", f"### `{configured.__name__}.{name}`", ""]
                lines += [f"{trait.info()}; default `{default}`", ""]
                lines += [inspect.cleandoc(str(trait.help))]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check the pages; returns the exit status."""
    pages = {"reasons.md": reasons(), "settings.md": settings()}
    if "--check" in sys.argv[1:]:
        old = [n for n, t in pages.items() if (REFERENCE / n).read_text() != t]
        if old:
            print(f"out of date: {', '.join(old)}; run docs/generate.py")
        return bool(old)
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages.items():
        (REFERENCE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
