"""Checks what a ``jupyterhub_config.py`` passes to us, before the Hub acts on it.

A mistake there must never keep a Hub from starting: after an unattended restart, no
user would have a server. So each function returns the valid part and, apart from it,
sentences about the rest; ``configure(c)`` passes those to the service, which shows them
and leaves every session alone. Nothing is started, read or written.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jupyterhub.spawner import Spawner
from traitlets.config import Config
from traitlets.config.loader import DeferredConfigString, LazyConfigValue

from jupyterhub_gpu_reclaim.service.settings import validation

if TYPE_CHECKING:
    from collections.abc import Callable

    from traitlets import HasTraits

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
    """The arguments of ``configure``, each valid or its default, and the mistakes.

    Args:
        given: by name, including unknown ones.
        defaults: of the known ones.
    """
    sound, found = dict(defaults), []
    for name, said in given.items():
        if name not in defaults:
            found.append(
                f"configure() takes no {name}{validation.meant(name, defaults)}"
            )
            continue
        wrong = _JUDGES[name](name, said)
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

    Args:
        c: the Hub's configuration.
        sound: the arguments of ``configure``.
        own: the service's settings that are set, by their full names.
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


def _placement(name: str, value: Any) -> str:
    if value in PLACEMENTS:
        return ""
    near = validation.meant(str(value), PLACEMENTS)
    return f"{name} is 'local', 'docker' or 'kubernetes', not {str(value)[:40]!r}{near}"


def _agent(name: str, value: Any) -> str:
    good = isinstance(value, str) and value.isprintable()
    if good and value.startswith("unix:/"):
        return ""
    try:
        parts = urlsplit(value) if good else urlsplit("")
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
        good = good and parts.port != 0
    except ValueError:
        good = False
    return "" if good else f"{name} must be like unix:/path or http://127.0.0.1:8099."


def _path(name: str, value: Any) -> str:
    text = str(value) if isinstance(value, str | Path) else ""
    if text.startswith("/") and "\0" not in text:
        return ""
    return f"{name} must be an absolute path, not {str(value)[:80]!r}."


def _port(name: str, value: Any) -> str:
    if _is_number(value) and isinstance(value, int) and 0 < value < 65536:
        return ""
    return f"{name} must be a whole number from 1 to 65535, not {str(value)[:40]!r}."


def _host(name: str, value: Any) -> str:
    fine = isinstance(value, str) and re.fullmatch(
        r"[\w.-]+|\[?[0-9a-fA-F:.]+\]?", value
    )
    if value is None or fine:
        return ""
    return f"{name} must be an address or a host name, not {str(value)[:80]!r}."


def _seconds(name: str, value: Any) -> str:
    if value is None:
        return ""
    section, _, trait = SHORT[name].partition(".")
    owner = next(o for o in validation.SECTIONS[section] if o.class_traits().get(trait))
    return validation.judged_value(owner, trait, DeferredConfigString(str(value)), name)


def _options(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        return (
            f"{name} must be a dictionary, for example {{'ReclaimService.grace': 600}}."
        )
    return " ".join(options(value))


def _environment(name: str, value: Any) -> str:
    if value is None:
        return ""
    good = isinstance(value, Mapping) and all(
        isinstance(k, str) and k and "=" not in k and isinstance(v, str)
        for k, v in value.items()
    )
    good = good and not any("\0" in k + v for k, v in value.items())
    return "" if good else f"{name} must be a dictionary of texts."


def _flag(name: str, value: Any) -> str:
    return "" if isinstance(value, bool) else f"{name} must be True or False."


_JUDGES: dict[str, Callable[[str, Any], str]] = {
    "placement": _placement,
    "agent": _agent,
    "agent_token_file": _path,
    "state_dir": _path,
    "service_port": _port,
    "service_host": _host,
    **dict.fromkeys(SHORT, _seconds),
    "service_options": _options,
    "service_environment": _environment,
    "strict": _flag,
}


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
    """Ports of this machine that the Hub and its proxy take, and whose they are."""
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
