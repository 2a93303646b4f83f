"""A Hub's configuration as set so far, read and added to.

Lists may be unset, set, or only extended (``.append``). An assignment below the call of
``configure`` would undo what it added, so the configuration is checked once more when
all of it has been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub.app import JupyterHub
from traitlets.config.loader import LazyConfigValue

from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable


_READ = "_gpu_reclaim_has_read_all"


def service_of(c: Any) -> dict[str, Any] | None:
    services = current(c.JupyterHub, "services")
    return next((s for s in services if s.get("name") == SERVICE_NAME), None)


def current(section: Any, name: str, empty: Any = ()) -> Any:
    """The value set so far, also if it was only extended (``.append``)."""
    value = section.get(name) if name in section else None
    if isinstance(value, LazyConfigValue):
        value = value.get_value(type(empty)() if empty != () else [])
    return empty if value is None else value


def extend(section: Any, name: str, items: list[Any]) -> None:
    section[name] = [*current(section, name), *items]


def default(section: Any, name: str, value: Any) -> None:
    if name not in section:
        section[name] = value


def when_all_is_read(finish: Callable[[Any], None]) -> bool:
    """Have ``finish`` called with a Hub's whole configuration, before it is applied.

    Returns whether there is a Hub that reads one; once it has, nothing is called.
    """
    if not JupyterHub.initialized():
        return False
    hub = JupyterHub.instance()
    if getattr(hub, _READ, False):
        return True
    apply = hub.update_config

    def finish_and_apply(config: Any) -> None:
        vars(hub).pop("update_config", None)  # the class's own is there again
        setattr(hub, _READ, True)
        finish(config)
        apply(config)

    hub.update_config = finish_and_apply
    return True
