"""Tells which of an administrator's hooks run at a suspend and at a return.

JupyterHub has one stop and one start. To its hooks a suspend looks like a stop, and a
return like a start, unless we prevent that. None of it is a mistake, so
``jupyterhub-gpu-reclaim config check`` lists it beside those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub.auth import Authenticator, PAMAuthenticator

if TYPE_CHECKING:
    from collections.abc import Iterator

_GIVES = (
    "it runs; what it sets does not reach the session, and other cards"
    " (CUDA_VISIBLE_DEVICES) or mounts or another user refuse the return;"
    " spawner.reclaim_suspended is true"
)
#: By setting of a spawner: at a suspend, at a return, at an end.
_SEEN = {
    "pre_spawn_hook": ("nothing", _GIVES, "nothing"),
    "auth_state_hook": ("nothing", f"{_GIVES}; also for the page before", "nothing"),
    "modify_pod_hook": ("nothing", _GIVES, "nothing"),
    "post_stop_hook": (
        "nothing",
        "nothing, also where it fails",
        (
            "it runs; for a session that was deleted while suspended: some seconds"
            " after that, or, where a part was away then or it was set aside, before"
            " the server's next start"
        ),
    ),
    "options_form": ("nothing", "it is not shown", "nothing"),
    "apply_user_options": (
        "nothing",
        "it runs with the last start's choice",
        "nothing",
    ),
    "post_start_cmd": ("nothing", "it does not run", "nothing"),
}


def told(hub: Any) -> list[str]:
    """The hooks that a Hub has, and when each of them runs.

    Args:
        hub: a ``JupyterHub`` that has read its configuration.
    """
    return [
        f"{name}: at a suspend: {suspend}; at a return: {back}; at an end: {end}."
        for name, (suspend, back, end) in _hooks(hub)
    ]


def _hooks(hub: Any) -> Iterator[tuple[str, tuple[str, str, str]]]:
    sections = {each.__name__ for each in hub.spawner_class.__mro__}
    for section in sorted(sections & hub.config.keys()):
        values = hub.config[section]
        for name, seen in _SEEN.items():
            if values.get(name):
                yield f"c.{section}.{name}", seen
    yield from _of_logins(hub)


def _of_logins(hub: Any) -> Iterator[tuple[str, tuple[str, str, str]]]:
    # JupyterHub calls these in pairs; a suspend is one half.
    owner = hub.authenticator_class
    runs = "it runs; spawner.reclaim_suspended is true"
    for name, seen in {
        "pre_spawn_start": ("nothing", runs, "nothing"),
        "post_spawn_stop": (runs, f"where that fails, {runs}", "it runs after a stop"),
    }.items():
        usual = {getattr(each, name) for each in (Authenticator, PAMAuthenticator)}
        if getattr(owner, name) not in usual:
            yield f"{owner.__name__}.{name}", seen
