"""Checks a Hub's whole configuration as it starts.

``configure`` sees only what is above its call. Other spawners, cullers and settings
that belong into that call are found here. Nothing is changed or refused: the sentences
go to the Hub's log, to the managers' page, and to ``config check``.

Problems are mistakes in our own settings, for which every session is left alone;
warnings are about the rest, and the service works.
"""

from __future__ import annotations

import json
from typing import Any

from traitlets.log import get_logger

from jupyterhub_gpu_reclaim.common.auth.scopes import OPTIONS
from jupyterhub_gpu_reclaim.hub import config_check, cullers
from jupyterhub_gpu_reclaim.hub.merging import service_of
from jupyterhub_gpu_reclaim.service.settings.environment import (
    ANNOUNCEMENT,
    PROBLEMS,
    WARNINGS,
)

_HOW_TO = "docs/how-to/another-spawner.md"


def look(hub: Any, environment: dict[str, str]) -> None:
    """Tell log and service of problems, warnings and the announcement of a Hub.

    It has read its configuration; ``environment`` is the service's.
    """
    if OPTIONS not in environment:
        return  # a service that configure(c) has not made
    environment[ANNOUNCEMENT] = str(hub.template_vars.get("announcement") or "")
    say(config_check.misplaced(hub.config), {"environment": environment})
    found = warnings(hub)
    for each in found:
        get_logger().warning("gpu-reclaim: %s", each)
    environment[WARNINGS] = json.dumps(found)


def say(problems: list[str], spec: dict[str, Any]) -> None:
    """Pass problems on to the service and the log."""
    if not problems:
        return
    for each in problems:
        get_logger().critical("gpu-reclaim: every session is left alone: %s", each)
    environment = spec.setdefault("environment", {})
    known = json.loads(environment.get(PROBLEMS, "[]"))
    environment[PROBLEMS] = json.dumps([*known, *problems])


def found_wrong(c: Any) -> list[str] | None:
    """The problems that ``configure`` has noted in ``c``; None: it was not called."""
    service = service_of(c)
    if service is None or "environment" not in service:
        return None
    return list(json.loads(service["environment"].get(PROBLEMS, "[]")))


def warnings(hub: Any) -> list[str]:
    """Whatever in a Hub's configuration keeps sessions from being saved."""
    return [
        *_foreign_spawner(hub),
        *_ends(hub),
        *cullers.unasking(hub.services),
    ]


def _foreign_spawner(hub: Any) -> list[str]:
    spawner = hub.spawner_class
    ancestry = [each.__name__ for each in spawner.__mro__]
    wraps = hasattr(spawner, "child_class")  # as those of ``wrapspawner``
    # By name: what is imported here is imported by every Hub.
    if "ReclaimMixin" in ancestry and "SwarmSpawner" not in ancestry and not wraps:
        return []
    called = f"{spawner.__module__}.{spawner.__qualname__}"
    problem = f"c.JupyterHub.spawner_class is {called}, which cannot suspend sessions"
    cure = f"see {_HOW_TO}, or take it out: configure(c) sets ours"
    return [f"{problem}, so none is ever suspended: {cure}."]


def _ends(hub: Any) -> list[str]:
    found = []
    if hub.cleanup_servers:
        found.append(
            "c.JupyterHub.cleanup_servers is True: when the Hub ends, it stops every"
            " server, and nothing is saved. Take it out: configure(c) sets False."
        )
    if hub.shutdown_on_logout:
        found.append(
            "c.JupyterHub.shutdown_on_logout is True: users who log out end their"
            " running servers, and nothing is saved. Take it out: an unused session is"
            " suspended."
        )
    return found
