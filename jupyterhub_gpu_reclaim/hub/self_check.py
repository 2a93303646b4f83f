"""Checks a Hub's whole configuration as it starts.

``configure`` sees only what is above its call. Other spawners, cullers and settings
that come too late are found here. Nothing is changed or refused: the sentences go to
the Hub's log, to the strip of the service's pages, and to ``config check``.

Problems are mistakes in our own settings, for which every session is left alone;
warnings are about the rest, and the service works.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from traitlets.log import get_logger

from jupyterhub_gpu_reclaim.common.auth.scopes import OPTIONS
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.hub import config_check, cullers, pages
from jupyterhub_gpu_reclaim.hub.merging import service_of
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.service.settings.environment import (
    ANNOUNCEMENT,
    PROBLEMS,
    WARNINGS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOW_TO = "docs/how-to/another-spawner.md"
#: Class of another spawner, or its base, and what to do about it.
_OURS = {
    "SwarmSpawner": "its containers may be on another machine than the agent, and Swarm"
    " starts them again by itself; DockerSpawner's containers are for"
    " placement='docker'",
    "DockerSpawner": "take it out; with placement='docker' in the call of configure(c)"
    " sessions start in its containers all the same",
    "KubeSpawner": "take it out; with placement='kubernetes' in the call of"
    " configure(c) sessions start in its pods all the same. A class of your own"
    f" inherits from ReclaimKubeSpawner too ({_HOW_TO})",
    "SystemdSpawner": f"have a class inherit from it and from ours ({_HOW_TO})",
    "LocalProcessSpawner": "take it out; with placement='local' sessions start as with"
    " LocalProcessSpawner all the same",
}


def look(hub: Any, environment: dict[str, str]) -> None:
    """Tell log and service of problems, warnings and the announcement of a Hub.

    It has read its configuration; ``environment`` is the service's.
    """
    if OPTIONS not in environment:
        return  # a service that configure(c) has not made
    environment[ANNOUNCEMENT] = str(hub.template_vars.get("announcement") or "")
    say(late(hub.config, environment), {"environment": environment}, strict=False)
    found = warnings(hub, environment)
    for each in found:
        get_logger().warning("gpu-reclaim: %s", each)
    environment[WARNINGS] = json.dumps(found)


def say(problems: list[str], spec: dict[str, Any], *, strict: bool) -> None:
    """Pass problems on to the service and the log.

    Raises:
        ValueError: there are some, and ``strict``.
    """
    if not problems:
        return
    if strict is True:
        raise ValueError(" ".join(problems))
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


def late(c: Any, environment: Mapping[str, str]) -> list[str]:
    """Settings below the call of ``configure``, which has not seen them."""
    if PROBLEMS in environment:
        return []  # the service was given no settings
    passed = {word.partition("=")[0] for word in json.loads(environment[OPTIONS])}
    names = [name for name in config_check.sections(c)[0] if f"--{name}" not in passed]
    return [f"c.{name} must stand above the call of configure(c)." for name in names]


def warnings(hub: Any, environment: Mapping[str, str]) -> list[str]:
    """Whatever in a Hub's configuration keeps sessions from being saved."""
    options = _options(environment)
    return [
        *_foreign_spawner(hub),
        *_ends(hub),
        *pages.hidden(hub.template_paths, f"{hub.data_files_path}/templates"),
        *cullers.early(hub.services, _idle_times(options)),
        *cullers.inside_servers(
            hub.config,
            _idle_times(options).idle_after,
            cullers.FOLDERS if _starts_processes(hub.spawner_class) else (),
        ),
        *_contradictions(options),
    ]


def _options(environment: Mapping[str, str]) -> dict[str, str]:
    words = [word.partition("=") for word in json.loads(environment[OPTIONS])]
    return {name.removeprefix("--"): value for name, _, value in words}


def _idle_times(options: Mapping[str, str]) -> cullers.IdleTimes:
    usual = Settings()
    return cullers.IdleTimes(
        idle_after=_seconds(
            options, "IdlePolicy.idle_after", IdlePolicy.idle_after.default_value
        ),
        warn_for=_seconds(options, "ReclaimService.warn_for", usual.warn_for),
        keep_limit=_seconds(options, "ReclaimService.keep_limit", usual.keep_limit),
    )


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(options.get(name, default))
    except ValueError:  # said where the service's settings are judged
        return default


def _foreign_spawner(hub: Any) -> list[str]:
    spawner = hub.spawner_class
    ancestry = [each.__name__ for each in spawner.__mro__]
    inner = _started_by(hub)
    # By name: what is imported here is imported by every Hub.
    if "SwarmSpawner" not in ancestry and not inner and "ReclaimMixin" in ancestry:
        return []
    what = next((advice for name, advice in _OURS.items() if name in ancestry), "")
    what = what or f"make a class of it and ReclaimMixin ({_HOW_TO})"
    if inner:
        what = (
            f"what it starts ({', '.join(inner)}) is not looked into, whichever class"
            " that is. Have one of our spawners offer the choice, by its options_form"
            f" or KubeSpawner's profile_list ({_HOW_TO})"
        )
    called = f"{spawner.__module__}.{spawner.__qualname__}"
    problem = f"c.JupyterHub.spawner_class is {called}, which cannot suspend sessions"
    return [f"{problem}, so none is ever suspended: {what}."]


def _started_by(hub: Any) -> list[str]:
    """The spawners that a wrapper starts, such as those of ``wrapspawner``, by name."""
    if not hasattr(hub.spawner_class, "child_class"):
        return []
    names = [each.__name__ for each in hub.spawner_class.__mro__]
    sections = [hub.config[name] for name in names if name in hub.config]
    found = [each["child_class"] for each in sections if "child_class" in each]
    for profiles in (each["profiles"] for each in sections if "profiles" in each):
        found += [profile[2] for profile in profiles]
    called = [getattr(each, "__qualname__", str(each)) for each in found]
    return list(dict.fromkeys(called)) or ["another spawner"]


def _starts_processes(spawner: type[Any]) -> bool:
    return any(each.__name__ == "LocalProcessSpawner" for each in spawner.__mro__)


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


def _contradictions(options: Mapping[str, str]) -> list[str]:
    found, times = [], _idle_times(options)
    if times.warn_for > times.idle_after > 0:
        found.append(
            f"ReclaimService.warn_for ({times.warn_for:g}) is longer than"
            f" IdlePolicy.idle_after ({times.idle_after:g}): a session is warned for"
            " longer than it has to be idle."
        )
    path = options.get("ReclaimService.event_log") or "-"
    if path != "-" and (why := _unwritable(path)):
        found.append(f"ReclaimService.event_log: {path} {why}.")
    return found


def _unwritable(path: str) -> str:
    # Not by ``pathlib``, which raises where a folder above may not be looked into.
    parent = os.path.dirname(path) or "."  # noqa: PTH120
    if os.path.isdir(path):  # noqa: PTH112
        return "is a folder"
    if not os.path.isdir(parent):  # noqa: PTH112
        return "is in a folder that is not there"
    target = path if os.path.exists(path) else parent  # noqa: PTH110
    return "" if os.access(target, os.W_OK) else "may not be written to"
