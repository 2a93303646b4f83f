"""Names what our package lacks in a Hub that brings its own packages.

In the Hub's pod of Zero to JupyterHub they come with the image, and change with an
upgrade of that chart. So this is checked before anything of ours that needs more than
Python and ``packaging``, which JupyterHub brings.

A Hub that lacks something does not start: with plain KubeSpawner instead it would give
users with a suspended session a new one (law 4), unnoticed by an upgrade that waits.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

_OURS = "jupyterhub-gpu-reclaim"
#: Compiled for each Python, which no version tells.
_COMPILED = ("msgspec",)


def check(extra: str) -> None:
    """Refuse to go on without our requirements, with those of an ``extra``.

    Raises:
        RuntimeError: what is missing.
    """
    missing = lacking(requires(_OURS) or [], extra)
    for name in _COMPILED:
        try:
            importlib.import_module(name)
        except ImportError:
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            missing.append(f"{name} for Python {python}")
    if missing:
        raise RuntimeError(
            f"{_OURS} {version(_OURS)} cannot run in this Hub, which lacks"
            f" {', '.join(missing)}. Take another release of it, or of the Hub; without"
            " it, no suspended session comes back."
        )


def lacking(lines: list[str], extra: str) -> list[str]:
    """The unmet ones of these requirements, each with what is installed."""
    missing = []
    for one in map(Requirement, lines):
        if one.marker and not any(
            one.marker.evaluate({"extra": each}) for each in ("", extra)
        ):
            continue
        wanted = f"{one.name}{one.specifier}"
        try:
            found = version(one.name)
        except PackageNotFoundError:
            missing.append(wanted)
            continue
        if not one.specifier.contains(found, prereleases=True):
            missing.append(f"{wanted} (it has {found})")
    return missing
