"""TLJH's configuration, read for us: our keys, its limits, its culler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Key of our settings in ``config.yaml``.
KEY = "gpu_reclaim"
CULLER = "cull-idle"
#: TLJH's own spawner.
_THEIRS = "UserCreatingSpawner"
#: Settings by which systemd does something for TLJH's own sessions and nothing for
#: ours.
_SYSTEMDS = (
    "dynamic_users",
    "isolate_devices",
    "readonly_paths",
    "readwrite_paths",
    "slice",
    "unit_extra_properties",
)
_SECTIONS = ("SystemdSpawner", "UserCreatingSpawner")


def read() -> dict[str, Any]:
    from tljh.config import CONFIG_FILE, get_current_config  # noqa: PLC0415 - TLJH only

    return dict(get_current_config(CONFIG_FILE) or {})


def arguments(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of ``configure`` below our key, and mistakes in them."""
    ours = config.get(KEY) or {}
    if not isinstance(ours, Mapping):
        return {}, [f"{KEY} in TLJH's config.yaml must have keys below it."]
    taken = {str(name): value for name, value in ours.items()}
    if "placement" in taken:
        del taken["placement"]
        return taken, [f"{KEY}.placement cannot be set: TLJH's sessions are local."]
    return taken, []


def lost(c: Any) -> list[str]:
    """Settings that our spawner could not keep; with any, TLJH's own must stay."""
    found = []
    spawner = c.JupyterHub.get("spawner_class")
    name = spawner if isinstance(spawner, str) else getattr(spawner, "__name__", "")
    if name.rpartition(".")[2] != _THEIRS:
        found.append(
            f"c.JupyterHub.spawner_class is {name or spawner!r}, not TLJH's own; it"
            " stays, and its sessions cannot be suspended."
        )
    for section in _SECTIONS:
        found += [
            f"c.{section}.{setting} has no effect on a session that can be suspended;"
            f" TLJH's own spawner stays until it is removed."
            for setting in _SYSTEMDS
            if section in c and c[section].get(setting)
        ]
    return found
