"""Changes a session's container so that it can be captured and restored.

Pure: its input stays as it is. It takes and returns the arguments of docker-py's
``create_container``, after all settings and hooks of DockerSpawner.

*Start*: the session's init runs before the server's command, behind the image's own
ENTRYPOINT (tini, start.sh), which stays. *Hold*: the init alone, as pid 1, so that the
restored tree becomes its child, in the very image that the session was saved in. The
init comes as text in a variable: images need only ``python3`` in their PATH.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner.placement import TOKENS, Purpose
from jupyterhub_gpu_reclaim.session_init import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey


def prepared(asked: Mapping[str, Any], purpose: Purpose) -> dict[str, Any]:
    """The arguments of ``create_container`` with the session's init in them.

    Raises:
        Refused: a session in such a container could not be suspended.
    """
    host = {**(asked.get("host_config") or {})}
    if host.get("PidMode"):
        why = f"pid_mode {host['PidMode']!r} leaves it no process number 1 of its own"
        raise _refused(why)
    # A container that was ended on purpose must not come up again by itself.
    host["RestartPolicy"] = {"Name": "no"}
    # A restart of Docker ends what it is to remove by itself, in spite of live-restore.
    host["AutoRemove"] = False
    theirs = asked.get("labels") or {}
    if not isinstance(theirs, dict):  # names alone
        theirs = dict.fromkeys(theirs, "")
    changes: dict[str, Any] = {
        "labels": {**theirs, **command_line.labels(purpose.init)},
        "host_config": host,
    }
    known = variables(asked.get("environment"))
    changes["environment"] = {**known, **command_line.inline_environment()}
    saved = purpose.saved
    if saved is None:
        return {**asked, **changes, "command": _command(asked, purpose)}
    host["Init"] = False  # the session's own is pid 1
    if saved.image:
        changes["image"] = saved.image
    for name in changes["environment"].keys() & TOKENS:
        changes["environment"][name] = saved.api_token
    return {**asked, **changes, "entrypoint": purpose.command, "command": None}


def is_of(labels: Mapping[str, str] | None, key: SessionKey, realm: str) -> bool:
    """Whether a container with these labels was made for that server of that Hub."""
    init = command_line.labelled(labels)
    if init is None:
        return False
    return (init.user, init.server, init.realm) == (key.user, key.server, realm)


def _command(asked: Mapping[str, Any], purpose: Purpose) -> list[str]:
    command = asked.get("command") or []
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if not words:
        raise _refused("neither its image nor c.DockerSpawner.cmd has a command")
    return [*purpose.command, "--", *words]


def variables(environment: Any) -> dict[str, Any]:
    """The environment, also from a list; a variable without a value is removed."""
    if isinstance(environment, dict):
        return environment
    words = [word.partition("=") for word in environment or ()]
    return {name: value if equals else None for name, equals, value in words}


def mounts(asked: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where the host's folders and volumes are mounted, each with which and how."""
    host = asked.get("host_config") or {}
    for bind in host.get("Binds") or ():
        source, _, rest = bind.partition(":")
        path, _, mode = rest.partition(":")
        yield path, [source, "ro" in mode.split(",")]
    for mount in host.get("Mounts") or ():
        if mount.get("Type") != "tmpfs":
            yield mount["Target"], [mount.get("Source"), bool(mount.get("ReadOnly"))]


def _refused(why: str) -> Refused:
    return Refused(Reason.PLACE_UNSUITABLE, place="container", why=why)
