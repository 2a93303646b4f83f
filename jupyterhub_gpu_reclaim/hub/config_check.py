"""Checks what a ``jupyterhub_config.py`` passes to us, before the Hub acts on it.

A mistake there must never keep a Hub from starting: after an unattended restart, no
user would have a server. So each function returns the valid part and, apart from it,
sentences about the rest; ``configure(c)`` passes those to the service, which shows them
and leaves every session alone. Nothing is started, read or written.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jupyterhub.spawner import Spawner
from traitlets import Dict, Enum, HasTraits, Integer
from traitlets.config import Config
from traitlets.config.loader import DeferredConfigString, LazyConfigValue

from jupyterhub_gpu_reclaim.common.traits import AgentAddress, Matching
from jupyterhub_gpu_reclaim.service.settings import validation

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACEMENTS = ("local", "docker", "kubernetes")
#: Our spawners' sections in a Hub's configuration, and the classes behind them.
_OURS = "jupyterhub_gpu_reclaim.hub"
_SPAWNERS = {
    "ReclaimMixin": f"{_OURS}.spawner.mixin",
    "SessionProcessSpawner": f"{_OURS}.local.spawner",
    "ReclaimLocalSpawner": f"{_OURS}.local.spawner",
    "SystemdSessionSpawner": f"{_OURS}.tljh.spawner",
    "ReclaimTLJHSpawner": f"{_OURS}.tljh.spawner",
    "SessionContainerSpawner": f"{_OURS}.docker.spawner",
    "ReclaimDockerSpawner": f"{_OURS}.docker.spawner",
    "SessionPodSpawner": f"{_OURS}.kube.spawner",
    "ReclaimKubeSpawner": f"{_OURS}.kube.spawner",
}
#: Sections of the service that may be set in a Hub's configuration, too.
_SERVICE = validation.SECTIONS.keys() - {"HubOAuth", "HubAuth"}
#: Arguments of ``configure`` that are settings of the service by a shorter name.
SHORT = {
    "sample_interval": "ReclaimService.sample_interval",
    "idle_after": "IdlePolicy.idle_after",
    "min_age": "Guards.min_age",
    "cool_down": "Guards.cool_down",
}


def arguments(
    given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The arguments of ``configure``, each valid or its default, and the mistakes."""
    sound, found = dict(defaults), []
    for name, said in given.items():
        if name not in defaults:
            found.append(
                f"configure() takes no {name}{validation.meant(name, defaults)}"
            )
            continue
        wrong = _judge(name, said)
        if wrong:
            found.append(wrong)
        else:
            sound[name] = said
    return sound, found


def options(given: Mapping[str, Any]) -> list[str]:
    """Mistakes in settings of the service, given by their full names."""
    found, config = [], Config()
    for name, value in given.items():
        section, dot, trait = str(name).partition(".")
        if not dot or not section.isidentifier() or not trait.isidentifier():
            found.append(f"{name!r} is not of the form 'ReclaimService.setting'.")
        elif callable(value):
            found.append(
                f"{name} is a function: it goes into ReclaimService.config_file."
            )
        elif "\0" in str(value):
            found.append(f"{name} holds a NUL.")
        elif value is not None:
            config[section][trait] = DeferredConfigString(str(value))
    return found + validation.problems(config)


def spawners(c: Any, *, mend: bool = False) -> list[str]:
    """Mistakes in the settings of our spawners; ``mend`` takes the wrong ones out.

    Otherwise the Hub would fail at each spawner that it makes, also while it starts.
    """
    found = []
    for section, module in _SPAWNERS.items():
        if section not in c:
            continue
        try:
            owner = getattr(importlib.import_module(module), section)
        except ImportError:
            continue  # its packages are missing, so it is not used
        for name, value in list(c[section].items()):
            wrong = _spawners_value(owner, section, name, value)
            if wrong:
                found.append(wrong)
                if mend:
                    del c[section][name]
    return found + [
        f"{section}.enable_user_namespaces gives each user a namespace; the service"
        " watches one alone, so none of these sessions can be suspended."
        for section in ("Spawner", "KubeSpawner", *_SPAWNERS)
        if section in c and c[section].get("enable_user_namespaces") is True
    ]


def sections(c: Any) -> tuple[dict[str, Any], list[str]]:
    """Settings of the service in its own sections, such as ``c.IdlePolicy``.

    Returns:
        values by their full names, and sentences about invalid ones.
    """
    values: dict[str, Any] = {}
    found = []
    for section in _SERVICE:
        for name, value in c[section].items() if section in c else ():
            if isinstance(value, LazyConfigValue):
                found.append(f"{section}.{name} must be set as a whole.")
            else:
                values[f"{section}.{name}"] = value
    return values, found + options(values)


def twice(in_sections: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Settings that a section and the call of ``configure`` set differently."""
    return [
        f"{name} is {str(value)[:40]!r} in c.{name}, and {str(own[name])[:40]!r} in the"
        " call of configure(c)."
        for name, value in in_sections.items()
        if own.get(name) is not None and str(own[name]) != str(value)
    ]


def together(c: Any, sound: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Settings that are valid alone but contradict the Hub's.

    ``sound`` are the arguments of ``configure``, ``own`` the service's settings that
    are set.
    """
    found = []
    port = sound["service_port"]
    if sound["placement"] != "kubernetes" and (whose := _hub_ports(c).get(port)):
        found.append(f"service_port: {port} is the port of {whose}.")
    wait = own.get("ReclaimService.gpu_wait")
    longest = c.get("Spawner", {}).get("start_timeout")
    if _is_number(wait) and _is_number(longest) and 0 < longest <= wait:
        found.append(
            f"ReclaimService.gpu_wait ({wait:g}) must be shorter than"
            f" Spawner.start_timeout ({longest:g})."
        )
    full = sound["service_options"] or {}
    for short, name in SHORT.items():
        if sound[short] is not None and full.get(name, sound[short]) != sound[short]:
            found.append(f"{short} and {name} say different things.")
    return found


# --- one argument --------------------------------------------------------------------


class _AbsolutePath(Matching):
    info_text = "an absolute path"
    pattern = r"/[^\0]*"

    def validate(self, obj: Any, value: Any) -> Any:
        return super().validate(obj, str(value) if isinstance(value, Path) else value)


class _Host(Matching):
    info_text = "an address or a host name"
    pattern = r"[\w.-]+|\[?[0-9a-fA-F:.]+\]?"


class _VariableName(Matching):
    pattern = r"[^=\0]+"


class _VariableValue(Matching):
    pattern = r"[^\0]*"


class _Arguments(HasTraits):
    """The arguments of ``configure`` that are no settings of the service."""

    placement = Enum(PLACEMENTS).tag(config=True)
    agent = AgentAddress().tag(config=True)
    agent_token_file = _AbsolutePath().tag(config=True)
    state_dir = _AbsolutePath().tag(config=True)
    service_port = Integer(min=1, max=65535).tag(config=True)
    service_host = _Host(allow_none=True).tag(config=True)
    service_options = Dict(allow_none=True).tag(config=True)
    service_environment = Dict(
        key_trait=_VariableName(), value_trait=_VariableValue(), allow_none=True
    ).tag(config=True)


def _judge(name: str, value: Any) -> str:
    owner: type[HasTraits] = _Arguments
    trait = name
    if name in SHORT:
        if value is None:
            return ""
        section, _, trait = SHORT[name].partition(".")
        owners = validation.SECTIONS[section]
        owner = next(each for each in owners if each.class_traits().get(trait))
        value = DeferredConfigString(str(value))
    wrong = validation.judged_value(owner, trait, value, name)
    if name == "service_options" and value and not wrong:
        return " ".join(options(value))
    return wrong


# --- the Hub's own -------------------------------------------------------------------


def _spawners_value(owner: type[HasTraits], section: str, name: str, value: Any) -> str:
    traits = owner.class_traits(config=True)
    called = f"{section}.{name}"
    if name not in traits:
        # What its base has may stand here, too, and which that is we do not know.
        near = validation.meant(name, traits)
        strange = near != "." and name not in Spawner.class_traits()
        return f"{called} is not a setting{near}" if strange else ""
    if not str(getattr(traits[name].this_class, "__module__", "")).startswith(_OURS):
        return ""  # JupyterHub's own
    return validation.judged_value(owner, name, value, called)


def _hub_ports(c: Any) -> dict[int, str]:
    hub, proxy = c.get("JupyterHub", {}), c.get("ConfigurableHTTPProxy", {})
    found: dict[int, str] = {}
    for section, url, name, default in (
        (hub, "bind_url", "port", 8000),
        (hub, "hub_bind_url", "hub_port", 8081),
        (proxy, "api_url", "", 8001),
    ):
        port = _port_of(section[url]) if url in section else section.get(name, default)
        if isinstance(port, int):
            found[port] = {"api_url": "the proxy's API"}.get(url, f"JupyterHub.{url}")
    return found


def _port_of(url: Any) -> int:
    try:
        return int(urlsplit(url).port or 0)
    except (TypeError, ValueError, AttributeError):
        return 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
