"""Names what our package lacks in a Hub whose other packages are not of our choice.

In the Hub's pod of Zero to JupyterHub they are its image's, which comes first and is
another one after an upgrade of that chart. So this is asked before anything of ours
that needs more than Python and ``packaging``, which JupyterHub brings.

A Hub that lacks something does not start: with plain KubeSpawner in our place it would
start users anew who have a suspended session (law 4), and an upgrade that waits for the
Hub would not notice.
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
    """Refuse to go on without what we need.

    Args:
        extra: of our package, such as ``kubernetes``.

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
            " it, nobody gets a suspended session back."
        )


def lacking(lines: list[str], extra: str) -> list[str]:
    """Which of these requirements nothing here fulfils, each with what is here."""
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
