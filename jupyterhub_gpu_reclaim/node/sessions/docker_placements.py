"""Finds sessions in Docker's containers, and lets none pose as another.

As in a pod (``placements.PodPlacements``), with a container instead. The kernel tells
in which container a process lives, by control groups that root has made, and Docker,
instead of the service, for which session the Hub made that container. A user's command
line cannot name a session of another container.

Docker is asked once for each incarnation, so that it may be restarted while its
containers run. While it is silent, an unknown session is an error, not an absence.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.decoders import json_decoder
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import cgroups
from jupyterhub_gpu_reclaim.node.sessions.placements import PodPlacements
from jupyterhub_gpu_reclaim.session_init.command_line import INCARNATION_LABEL, labelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from jupyterhub_gpu_reclaim.node.session import Session

SOCKET = "/run/docker.sock"
#: Seconds for one answer.
_PATIENCE = 10.0


class _Container(msgspec.Struct, frozen=True, rename="pascal"):
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
        there = self._containers()
        found: dict[str, PodHint] = {}
        for container in sorted(there, key=lambda one: one.created):
            init = labelled(container.labels)
            if init is None or init.realm != realm:
                continue
            hint = PodHint(
                pod=container.id,
                key=SessionKey(init.user, init.server),
                image=container.image_id,
                session=init.session,
                account=init.account,
            )
            found.setdefault(init.incarnation, hint)
        return found

    def _containers(self) -> list[_Container]:
        filters = quote(json.dumps({"label": [INCARNATION_LABEL]}))
        connection = _Connection(self._path)
        try:
            connection.request("GET", f"/containers/json?filters={filters}")
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
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _silent(detail: str) -> Unreachable:
    return Unreachable(Reason.DOCKER_SILENT, detail=detail)


class DockerPlacements(PodPlacements):
    parse = staticmethod(cgroups.parse_engine_container)

    def __init__(self, engine: DockerEngine, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._engine = engine

    def list(self) -> list[Session]:
        found = super().list()
        with self._lock:
            told = self._hints
            return [replace(one, hint=told[one.incarnation]) for one in found]

    def set_hint(self, incarnation: str, hint: PodHint) -> None:
        # Only from a record of ours: the service names no container.
        if hint.pod:
            super().set_hint(incarnation, hint)

    def _claims(self, pod: str = "") -> Iterator[Session]:
        # A container is made for one session: where that is known, nobody has to ask.
        with self._lock:
            made_for = {hint.pod: name for name, hint in self._hints.items()}
        for claim in super()._claims(pod):
            if made_for.get(claim.hint.pod, claim.incarnation) == claim.incarnation:
                yield claim

    def _inquire(self, incarnations: AbstractSet[str]) -> None:
        with self._lock:
            known = {name: self._hints.get(name, PodHint()) for name in incarnations}
        if all(hint.image for hint in known.values()):
            return
        try:
            told = self._engine.hints(self._realm)
        except Unreachable:
            if all(hint.pod for hint in known.values()):
                return  # of a record
            raise
        for name in incarnations & told.keys():
            super().set_hint(name, told[name])

    def _may_be(self, claim: Session) -> bool:
        with self._lock:
            hint = self._hints.get(claim.incarnation)
        return hint is not None and (hint.pod, hint.key) == (claim.hint.pod, claim.key)
