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

from jupyterhub.spawner import Spawner
from traitlets import Dict, Enum, HasTraits, Integer, Unicode
from traitlets.config.loader import DeferredConfigString

from jupyterhub_gpu_reclaim.common.traits import Matching
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
#: Settings of the service by their names: whose trait each is, and its full name.
SETTINGS: dict[str, tuple[type[HasTraits], str]] = {
    name: (owner, f"{section}.{name}")
    for section, owners in validation.SECTIONS.items()
    for owner in owners
    for name in owner.class_traits(config=True)
}


def arguments(
    given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The arguments of ``configure``.

    Returns:
        its own, each valid or its default; the service's settings; and the mistakes.
    """
    sound, found = dict(defaults), list[str]()
    settings: dict[str, Any] = {}
    for name, said in given.items():
        if name in defaults:
            wrong = validation.judged_value(_Arguments, name, said, name)
            into = sound
        elif name in SETTINGS:
            wrong, into = _judge(name, said), settings
        else:
            near = validation.meant(name, [*defaults, *SETTINGS])
            wrong = f"configure() takes no {name}{near}"
        if wrong:
            found.append(wrong)
        else:
            into[name] = said
    return sound, settings, found


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


def misplaced(c: Any) -> list[str]:
    """Settings of the service that stand in sections of the Hub's configuration."""
    sections = dict.fromkeys(full.partition(".")[0] for _, full in SETTINGS.values())
    return [
        f"c.{section}.{name} has no effect: {name} goes into the call of configure(c)."
        for section in sections
        if section in c
        for name in c[section]
    ]


# --- one argument --------------------------------------------------------------------


class _AbsolutePath(Matching):
    info_text = "an absolute path"
    pattern = r"/[^\0]*"

    def validate(self, obj: Any, value: Any) -> Any:
        return super().validate(obj, str(value) if isinstance(value, Path) else value)


class _Host(Matching):
    info_text = "an address or a host name"
    pattern = r"[\w.-]+|\[?[0-9a-fA-F:.]+\]?"


class _Arguments(HasTraits):
    """The arguments of ``configure`` that are no settings of the service."""

    placement = Enum(PLACEMENTS).tag(config=True)
    state_dir = _AbsolutePath().tag(config=True)
    service_port = Integer(min=1, max=65535).tag(config=True)
    service_host = _Host(allow_none=True).tag(config=True)
    service_environment = Dict(
        key_trait=Unicode(), value_trait=Unicode(), allow_none=True
    ).tag(config=True)


def _judge(name: str, value: Any) -> str:
    if callable(value) or "\0" in str(value):
        return f"{name} is a function, or holds a NUL."
    owner, full = SETTINGS[name]
    words = DeferredConfigString(str(value))
    return validation.judged_value(owner, name, words, full)


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
