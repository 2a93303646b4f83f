"""Hooks of The Littlest JupyterHub: packages for its users, and our configuration.

TLJH calls its plugins before it reads ``jupyterhub_config.d``, whose files may replace
any list that we extend. So the hook only has the Hub call ``complete`` when everything
has been read and nothing applied.
"""

from __future__ import annotations

import json
from importlib.metadata import distribution
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker
from traitlets.log import get_logger

from jupyterhub_gpu_reclaim.hub.config import configure
from jupyterhub_gpu_reclaim.hub.merging import service_of, when_all_is_read
from jupyterhub_gpu_reclaim.hub.self_check import say
from jupyterhub_gpu_reclaim.hub.tljh import settings

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = "jupyterhub-gpu-reclaim"
_SPAWNER = "jupyterhub_gpu_reclaim.hub.tljh.spawner.ReclaimTLJHSpawner"

hookimpl = HookimplMarker("tljh")


@hookimpl
def tljh_extra_user_pip_packages() -> list[str]:
    # For the extensions of an open tab.
    return [_requirement()]


@hookimpl
def tljh_custom_jupyterhub_config(c: Any) -> None:
    if not when_all_is_read(complete):
        complete(c)  # somebody only looks at the configuration


def complete(c: Any, tljh_config: Mapping[str, Any] | None = None) -> None:
    """Add ours to a Hub's configuration that has been read to its end.

    ``tljh_config`` is as ``tljh-config show`` prints it; None: it is read.
    """
    config = settings.read() if tljh_config is None else tljh_config
    arguments, problems = settings.arguments(config)
    if lost := settings.lost(c):
        problems += lost  # nothing is suspended: the culler goes on, too
    else:
        c.JupyterHub.spawner_class = _SPAWNER
        _take_default_culler_out(c, config)
    configure(c, **arguments)
    if (service := service_of(c)) is not None:
        say(problems, service)  # every session is left alone


def _take_default_culler_out(c: Any, config: Mapping[str, Any]) -> None:
    """Remove TLJH's own culler: it ends after ten minutes what we suspend later."""
    # One that was configured stays, and is checked as on any Hub (hub/cullers.py).
    if (config.get("services") or {}).get("cull"):
        return
    services = c.JupyterHub.get("services", [])
    c.JupyterHub.services = [s for s in services if s.get("name") != settings.CULLER]
    get_logger().info("gpu-reclaim: TLJH's own culler is off: sessions are saved")


def _requirement() -> str:
    installed = distribution(_PACKAGE)
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if "url" not in origin:
        return f"{_PACKAGE}=={installed.version}"
    vcs = origin.get("vcs_info")
    if vcs is None:
        return f"{_PACKAGE} @ {origin['url']}"
    return f"{_PACKAGE} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
