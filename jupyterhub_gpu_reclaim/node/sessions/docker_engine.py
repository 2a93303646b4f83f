"""Asks Docker about the sessions' containers, over its UNIX socket.

The Hub's spawner labels each container as it makes it (``hub/docker/container.py``),
and anyone who may make containers may do anything on the machine. A container's id,
labels and image never change. It has its image's labels, too, so of several containers
of one incarnation the first counts: an incarnation is secret before that is made.
"""

from __future__ import annotations

import http.client
import json
import socket
from http import HTTPStatus
from urllib.parse import quote

import msgspec

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.decoders import json_decoder
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.session_init.container_labels import (
    ACCOUNT,
    INCARNATION,
    REALM,
    SERVER,
    SESSION,
    USER,
)

SOCKET = "/run/docker.sock"
#: Seconds for one answer.
_PATIENCE = 10.0


class _Container(msgspec.Struct, frozen=True, rename="pascal"):
    """A container in Docker's list; unknown fields are left out."""

    id: str
    created: int  #: seconds since 1970
    image_id: str = msgspec.field(default="", name="ImageID")
    labels: dict[str, str] | None = None


class DockerEngine:
    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def hints(self, realm: str = "") -> dict[str, PodHint]:
        """The facts about every session that has a container here, by incarnation.

        Only containers count that the Hub of this realm has made.

        Raises:
            Unreachable: Docker does not answer (``docker_silent``).
        """
        filters = quote(json.dumps({"label": [INCARNATION]}))
        there = self._containers(f"/containers/json?filters={filters}")
        found: dict[str, PodHint] = {}
        for container in sorted(there, key=lambda one: one.created):
            labels = container.labels or {}
            if labels.get(REALM, "") != realm:
                continue
            hint = PodHint(
                pod=container.id,
                key=SessionKey(labels.get(USER, ""), labels.get(SERVER, "")),
                image=container.image_id,
                session=labels.get(SESSION, ""),
                account=labels.get(ACCOUNT, ""),
            )
            found.setdefault(labels[INCARNATION], hint)
        return found

    def _containers(self, path: str) -> list[_Container]:
        connection = _Connection(self._path)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != HTTPStatus.OK:
                raise _silent(f"HTTP {answer.status}: {body[:200]!r}")
            return json_decoder(list[_Container]).decode(body)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            raise _silent(f"{self._path}: {error!r}") from None
        finally:
            connection.close()


class _Connection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _silent(detail: str) -> Unreachable:
    return Unreachable(Reason.DOCKER_SILENT, detail=detail)
