"""``configure(c)``: everything that a ``jupyterhub_config.py`` needs, in one call.

It is the last line of the administrator's configuration. It only adds: lists and roles
are extended, and a value that is set is never changed. It starts nothing and makes no
connection; it makes two secrets (files of mode 0600) in the service's folder if they
are missing.

A mistake in its arguments does not keep the Hub from starting: it is reported in the
Hub's log and on the service's page, and every session is left alone until it is
corrected. ``config check`` finds it before.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.auth.scopes import (
    CUSTOM_SCOPES,
    MANAGE,
    OPTIONS,
    SERVICE_NAME,
    SERVICE_SCOPES,
    STOPS_ALL,
    USER_SCOPES,
)
from jupyterhub_gpu_reclaim.common.durable import kept_secret
from jupyterhub_gpu_reclaim.hub import config_check, pages, patches
from jupyterhub_gpu_reclaim.hub.merging import (
    current,
    default,
    extend,
    service_of,
    when_all_is_read,
)
from jupyterhub_gpu_reclaim.hub.self_check import say
from jupyterhub_gpu_reclaim.service.settings.environment import SPAWNER_SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATE_DIR = "/var/lib/jupyterhub-gpu-reclaim/service"
#: Name of the socket in the service's folder that the spawners ask at.
_SOCKET = "spawner.sock"
#: Seconds that a start may take: a large session is read back from the store.
START_TIMEOUT = 600
_API_SERVER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
#: JupyterHub's names for our spawners, by placement.
_SPAWNERS = {
    "local": "gpu-reclaim-local",
    "docker": "gpu-reclaim-docker",
    "kubernetes": "gpu-reclaim",
}


def configure(
    c: Any,
    /,
    *,
    placement: str = "local",
    state_dir: str = STATE_DIR,
    service_port: int = 10101,
    service_host: str | None = None,
    service_environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> None:
    """Add the service, its role, the spawner and the pages to a Hub's configuration.

    Args:
        c: the configuration object of ``jupyterhub_config.py``.
        placement: where sessions run: ``local`` (on this machine), ``docker`` (in
            containers of this machine's Docker) or ``kubernetes`` (in pods; the agents
            are found through the API server).
        state_dir: folder of the service: journal and secrets, only for root.
        service_port: port that the service listens on.
        service_host: address that it listens on, for the proxy and the Hub. None:
            127.0.0.1, and in a pod the pod's own, since the proxy is another pod.
        service_environment: added to the service's environment.
        settings: those of the service and the policy, each by its name, for example
            ``idle_after=1800``. A name that there is not is a mistake like any other.
    """
    given = {
        name: value for name, value in locals().items() if name not in {"c", "settings"}
    }
    everything = {**given, **settings}
    asked, chosen, problems = config_check.arguments(everything, _DEFAULTS)
    if asked["placement"] != placement and "KUBERNETES_SERVICE_HOST" in os.environ:
        asked["placement"] = "kubernetes"  # never sessions in the Hub's own pod
    problems += config_check.spawners(c, mend=True)
    folder = Path(asked["state_dir"])
    # If the intended folder is not known, nothing is made in another.
    usable = asked["state_dir"] == state_dir and _make_folder(folder, problems)
    host = asked["service_host"] or _own_address(asked["placement"], problems)
    url = f"http://{host}:{asked['service_port']}"
    made_before = service_of(c)
    if made_before is not None:
        what = f"There is a service {SERVICE_NAME!r} already; configure(c) runs once."
        problems.append(what)
        say(problems, made_before)
        return
    words = [f"--ReclaimService.state_dir={asked['state_dir']}"]
    if asked["placement"] == "kubernetes":
        words.append("--ReclaimService.placement=kubernetes")
    for name, value in chosen.items():
        words.append(f"--{config_check.SETTINGS[name][1]}={value}")
    spec = {
        "name": SERVICE_NAME,
        "display": True,
        "url": url,
        # ``-P``: without the working directory in its path, where anything may be.
        "command": [sys.executable, "-P", "-m", "jupyterhub_gpu_reclaim.service"],
        "api_token": _secret(folder / "service.token", problems, usable),
        "environment": {
            "GPU_RECLAIM_SPAWNER_TOKEN": _secret(
                folder / "spawner.token", problems, usable
            ),
            SPAWNER_SOCKET: str(folder / _SOCKET),
            # A Hub that ends before its service has begun leaves no orphan.
            "GPU_RECLAIM_HUB_PID": str(os.getpid()),
            # every user of the machine can read a command line
            OPTIONS: json.dumps([] if problems else words),
            # The Hub passes on little else of what the kubelet sets.
            **{name: os.environ[name] for name in _API_SERVER if name in os.environ},
            **(asked["service_environment"] or {}),
        },
        "oauth_client_allowed_scopes": [MANAGE, STOPS_ALL],
        "oauth_no_confirm": True,
    }
    say(problems, spec)
    _add_to_lists(c, spec)
    default(c.JupyterHub, "spawner_class", _SPAWNERS[asked["placement"]])
    _spawner(c, folder)
    patches.apply()
    when_all_is_read(lambda whole: _add_to_lists(whole, spec, repeated=True))


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(configure).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
#: Whether nothing may be made on this machine (``config check``).
_only_judging = False


@contextlib.contextmanager
def only_judging() -> Iterator[None]:
    """Have ``configure`` make no folder and no secret (``config check``)."""
    global _only_judging  # noqa: PLW0603 - a configuration file gives no way to ask
    _only_judging = True
    try:
        yield
    finally:
        _only_judging = False


# --- parts ---------------------------------------------------------------------------


def _add_to_lists(c: Any, spec: dict[str, Any], *, repeated: bool = False) -> None:
    """Add the service, its roles and the pages to their lists, if missing.

    ``repeated``: the service was there before, unless this is the configuration of
    another Hub.
    """
    if repeated and "reclaim_service" not in c.ReclaimMixin:
        return
    if service_of(c) is None:
        extend(c.JupyterHub, "services", [spec])
    _roles(c)
    pages.add(c)


def _make_folder(path: Path, problems: list[str]) -> bool:
    if _only_judging:
        return False
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        what = f"state_dir: the folder {path} cannot be made: {error.strerror}."
        problems.append(what)
        return False
    return True


def _own_address(placement: str, problems: list[str]) -> str:
    if placement != "kubernetes" or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return "127.0.0.1"
    try:
        # The kubelet has written the pod's name and address into its /etc/hosts.
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError as error:
        problems.append(f"The pod's own address is not known: {error.strerror}.")
        return "127.0.0.1"
    address = str(found[0][4][0])
    return f"[{address}]" if ":" in address else address


def _roles(c: Any) -> None:
    hub = c.JupyterHub
    scopes = dict(current(hub, "custom_scopes", {}))
    hub["custom_scopes"] = {**CUSTOM_SCOPES, **scopes}
    roles = list(current(hub, "load_roles"))
    user = next((role for role in roles if role.get("name") == "user"), None)
    if user is None:
        user = {"name": "user", "scopes": ["self"]}
        roles.append(user)
    user["scopes"] = [
        *user.get("scopes", ["self"]),
        *[s for s in USER_SCOPES if s not in user.get("scopes", [])],
    ]
    ours = {
        "name": f"{SERVICE_NAME}-service",
        "description": "What the service that suspends sessions does at the Hub",
        "services": [SERVICE_NAME],
        "scopes": list(SERVICE_SCOPES),
    }
    if ours["name"] not in {role.get("name") for role in roles}:
        roles.append(ours)
    hub["load_roles"] = roles


def _spawner(c: Any, folder: Path) -> None:
    # At its end the Hub would stop every server, and nothing would be saved.
    default(c.JupyterHub, "cleanup_servers", False)
    default(c.Spawner, "start_timeout", START_TIMEOUT)
    default(c.ReclaimMixin, "reclaim_service", f"unix:{folder / _SOCKET}")
    default(c.ReclaimMixin, "reclaim_token_file", str(folder / "spawner.token"))


def _secret(path: Path, problems: list[str], usable: bool) -> str:
    if usable:
        try:
            return kept_secret(path)
        except (OSError, ValueError) as error:
            problems.append(f"The file {path} cannot be used: {error}.")
    return secrets.token_hex(32)
