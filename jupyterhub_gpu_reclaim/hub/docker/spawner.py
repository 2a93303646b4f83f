"""Sessions in Docker's containers: DockerSpawner's, with the session's init in them.

``ReclaimDockerSpawner`` is what a ``jupyterhub_config.py`` names
(``gpu-reclaim-docker``). Its containers are those that DockerSpawner would make, with
the same volumes, networks, limits and device requests; ``container.py`` adds the init.
The mixin decides when to start, restore or release; this module makes containers and
ends them. Each start makes a new one, and none is left behind: what a session had
changed in its container's root is in the checkpoint.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from docker.errors import APIError, DockerException
from dockerspawner import DockerSpawner
from jupyterhub.utils import exponential_backoff, random_port
from requests.exceptions import RequestException
from traitlets import default

from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.docker import container as containers
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.hub.spawner.placement import Launch
from jupyterhub_gpu_reclaim.hub.spawner.session_traits import ImageTraits
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.session_init.container_labels import INCARNATION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Seconds for Docker to end and remove a container.
END_SECONDS = 30.0
_MISSING, _CONFLICT = 404, 409


class SessionContainerSpawner(ImageTraits, DockerSpawner):
    """Makes, watches and ends one session's container, without suspending any."""

    #: No setting: a container that is started again would be a former incarnation.
    remove = True

    object_name: Any

    reclaim_launch = Launch()
    _running = True  #: as last seen; until then nothing may be ended or replaced

    # --- the container ---

    def docker(self, method: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Ask Docker; for a container with the session's init in it."""
        if method == "create_container":
            kwargs = containers.prepared(kwargs, self._purpose())
        answer: Awaitable[Any] = super().docker(method, *args, **kwargs)
        return answer

    def _purpose(self) -> containers.ContainerPurpose:
        launch = self.reclaim_launch
        saved = launch.identity if launch.mode == "hold" else None
        return containers.ContainerPurpose(
            holding=launch.mode == "hold",
            key=SessionKey(self.user.name, self.name),
            incarnation=launch.incarnation,
            realm=self.realm,
            image=saved.image if saved else "",
            token=saved.api_token if saved else "",
            python=self.session_python,
        )

    # --- start, watch, end ---

    async def start(self) -> str:
        """Start the container; returns its server's address.

        Raises:
            Refused: Docker does not take it, or a session could not be suspended there.
            Unreachable: Docker does not answer.
        """
        holding = self.reclaim_launch.mode == "hold"
        if self.network_name == "host" and not holding:
            self.port = random_port()  # which it shares with all other sessions
        self._running = True
        try:
            return self._url(*await super().start())
        except DockerException as error:
            if isinstance(error.__cause__, RequestException):  # making the client
                raise Unreachable(Reason.DOCKER_SILENT, detail=str(error)) from None
            why = str(getattr(error, "explanation", "") or error).rstrip(".")
            raise Refused(Reason.CONTAINER_REFUSED, why=why) from None
        except RequestException as error:
            raise Unreachable(Reason.DOCKER_SILENT, detail=str(error)) from None

    async def get_command(self) -> list[str]:
        """The server's command; none to hold a place, whatever image is chosen now."""
        if self.reclaim_launch.mode == "hold":
            return []
        command: list[str] = await super().get_command()
        return command

    async def pull_image(self, image: str) -> None:
        """Pull what a start needs; a session comes back in the image that is here."""
        if self.reclaim_launch.mode != "hold":
            await super().pull_image(image)

    @default("use_internal_ip")
    def _of_its_own_network(self) -> bool:
        return bool(self.network_name != "bridge")  # the host's publishes no ports

    async def get_ip_and_port(self) -> tuple[str, int]:
        """Where its server listens; with the host's network, on the host itself."""
        if self.network_name == "host":
            return ("127.0.0.1", self.port)
        ip, port = await super().get_ip_and_port()
        return (ip, port)

    def _url(self, ip: str, port: int) -> str:
        """An address in full: its port may be a published one, not the session's."""
        scheme = "https" if self.internal_ssl else "http"
        return f"{scheme}://{ip}:{port}"

    async def poll(self) -> Any:
        """None while it runs, or Docker does not answer; DockerSpawner's words then."""
        try:
            return await super().poll()
        except (DockerException, RequestException) as error:
            self.log.warning("%s: Docker does not answer: %s", self._log_name, error)
            return None

    async def get_object(self) -> dict[str, Any] | None:
        """The container as Docker has it now; None: there is none."""
        found: dict[str, Any] | None = await super().get_object()
        self._running = found is not None and bool(found["State"]["Running"])
        return found

    async def stop(self, now: bool = False) -> None:
        """End the container, and wait until its name is free."""
        await super().stop(now)
        await self._gone()

    async def _gone(self) -> bool:
        """Whether it is gone, after some time at most."""

        async def looked() -> bool:
            return await self.get_object() is None

        return await self._waited(looked)

    async def _waited(self, ended: Callable[[], Awaitable[bool]]) -> bool:
        with suppress(TimeoutError):
            await exponential_backoff(
                ended, f"container {self.object_name} did not end", timeout=END_SECONDS
            )
            return True
        self.log.warning("%s: the container has not ended yet", self.object_name)
        return False


class ReclaimDockerSpawner(ReclaimMixin, SessionContainerSpawner):
    """Sessions in Docker's containers that can be suspended and resumed."""

    def reclaim_location(self) -> Location:
        """The container."""
        return Location(pod=self.object_id or "", name=self.object_name)

    def reclaim_take(self, location: Location) -> None:
        """Take over an existing container, under whatever name it has."""
        self.object_id = location.pod
        self.object_name = location.name or self.object_name

    def reclaim_alive(self) -> bool:
        """Whether it ran when it was last looked at."""
        return bool(self.object_id) and self._running

    async def reclaim_died(self) -> bool:
        """Wait until Docker has noticed the end of its programs."""

        async def looked() -> bool:
            await self.get_object()
            return not self._running

        return await self._waited(looked)

    def reclaim_frozen(self) -> bool | None:
        """Only the node knows."""
        return None

    async def reclaim_find(self, incarnation: str) -> Location | None:
        """Look for the container of an incarnation that the Hub has lost sight of."""
        label = f"{INCARNATION}={incarnation}"
        for found in await self.docker("containers", filters={"label": label}):
            return Location(pod=found["Id"], name=found["Names"][0].lstrip("/"))
        return None

    async def reclaim_where(self, port: int) -> str:
        """The address of its server."""
        del port  # Docker knows where that one is published
        return self._url(*await self.get_ip_and_port())

    async def reclaim_token(self) -> str:
        """The API token that stands in the container; empty if it is gone."""
        return await self._variable("JUPYTERHUB_API_TOKEN")

    async def reclaim_port(self) -> int:
        """The port that the session was started on; 0 if it is gone."""
        url = await self._variable("JUPYTERHUB_SERVICE_URL")
        return urlsplit(url).port or 0

    async def _variable(self, name: str) -> str:
        found = await self.get_object()
        for word in found["Config"]["Env"] or () if found else ():
            key, _, value = word.partition("=")
            if key == name:
                return str(value)
        return ""

    async def reclaim_end(self) -> None:
        """Remove the container, whatever it holds, and wait until it is gone."""
        if self.object_id:
            with suppress(APIError):  # gone, or being removed
                await self.docker(
                    "remove_container", self.object_id, v=True, force=True
                )
            await self._gone()
        self.reclaim_take(Location())
