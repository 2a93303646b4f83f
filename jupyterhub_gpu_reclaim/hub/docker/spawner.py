"""Sessions in Docker's containers: DockerSpawner's, with the session's init in them.

``ReclaimDockerSpawner`` is what a ``jupyterhub_config.py`` names
(``gpu-reclaim-docker``). Its containers have the same volumes, networks, limits and
device requests as DockerSpawner's; ``container.py`` adds the init. The mixin decides
when to start, restore or release. Each start makes a new container, and none is left
behind: a session's changes of its container's root are in the checkpoint.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, DockerException, NotFound
from dockerspawner import DockerSpawner
from jupyterhub.utils import exponential_backoff, random_port
from requests.exceptions import RequestException
from traitlets import default

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.docker import container as containers
from jupyterhub_gpu_reclaim.hub.spawner import given
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.hub.spawner.placement import ImageTraits
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.session_init.command_line import INCARNATION_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Seconds for Docker to end and remove a container.
END_SECONDS = 30.0
#: Calls that change nothing: an engine that fails at them knows nothing at the moment.
_QUESTIONS = frozenset({"containers", "inspect_container", "port"})


class SessionContainerSpawner(ImageTraits, DockerSpawner):
    """Makes, watches and ends one session's container; suspends none."""

    #: Fixed, not a setting: a container that is started again would be a former
    #: incarnation.
    remove = True

    object_id: Any
    object_name: Any

    _ended: dict[str, Any] | None = None  #: the container's state as last seen
    _running = True  #: as last seen; until then nothing may be ended or replaced

    # --- the container ---

    async def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call Docker; a container to be made gets the session's init.

        Raises:
            APIError: Docker refuses.
            Refused: a session could not be suspended there, or had something else.
            Unreachable: it does not answer, or cannot (``docker_silent``).
        """
        if method == "create_container":
            if "environment" in kwargs:  # else not a session's (``move_certs``)
                self.reclaim_given = given.settle(
                    self.reclaim_launch,
                    containers.variables(kwargs["environment"]),
                    containers.mounts(kwargs),
                )
            kwargs = containers.prepared(kwargs, self.reclaim_purpose())
        try:
            return await super().docker(method, *args, **kwargs)
        except APIError as error:
            if method not in _QUESTIONS or error.is_client_error():
                raise
            why = str(error)
        except (DockerException, RequestException) as error:
            why = str(error)
        raise Unreachable(Reason.DOCKER_SILENT, detail=why)

    # --- start, watch, end ---

    async def start(self) -> str:
        """Start the container; returns its server's address.

        Raises:
            Refused: Docker rejects it, or a session could not be suspended there.
            Unreachable: Docker does not answer.
        """
        holding = self.reclaim_launch.mode == "hold"
        if self.network_name == "host" and not holding:
            self.port = random_port()  # which it shares with all other sessions
        self._running = True
        try:
            return self._url(*await super().start())
        except DockerException as error:
            why = str(getattr(error, "explanation", "") or error)
            raise _refused(why) from None

    async def get_command(self) -> list[str]:
        if self.reclaim_launch.mode == "hold":
            return []
        return list(await super().get_command())

    async def check_allowed(self, image: str) -> str:
        if self.reclaim_launch.mode == "hold":
            return image
        return str(await super().check_allowed(image))

    async def pull_image(self, image: str) -> None:
        if self.reclaim_launch.mode != "hold":
            await super().pull_image(image)

    async def post_start_exec(self) -> None:
        if self.reclaim_launch.mode != "hold":
            await super().post_start_exec()

    @default("ip")
    def _of_this_machine_alone(self) -> str:
        return "127.0.0.1" if self.network_name == "host" else "0.0.0.0"  # noqa: S104

    @default("use_internal_ip")
    def _of_its_own_network(self) -> bool:
        return bool(self.network_name != "bridge")  # the host's publishes no ports

    async def get_ip_and_port(self) -> tuple[str, int]:
        if self.network_name == "host":
            return ("127.0.0.1", self.port)
        try:
            ip, port = await super().get_ip_and_port()
        except (ReclaimError, APIError):
            raise
        except Exception as error:  # noqa: BLE001 - DockerSpawner raises bare ones
            raise _refused(str(error)) from None
        return (ip, port)

    def _url(self, ip: str, port: int) -> str:
        # The port may be a published one, not the session's.
        scheme = "https" if self.internal_ssl else "http"
        return f"{scheme}://{ip}:{port}"

    async def poll(self) -> Any:
        # Without an answer of Docker, nothing is known to have ended.
        try:
            return await super().poll()
        except Unreachable as error:
            self.log.warning("%s: Docker does not answer: %s", self._log_name, error)
            return None

    async def get_object(self) -> dict[str, Any] | None:
        # It is found by its id if that is known: names are changed, and given to
        # others. A container that only has the name is another server's or Hub's, or
        # may be a session that this Hub has forgotten, unless a former start has left
        # it.
        known, found = self.object_id, None
        with suppress(NotFound):
            name = known or self.object_name
            found = await self.docker("inspect_container", name)
        if found is not None and not known and not self._may_be_taken(found):
            found = None
        self.object_id = found["Id"] if found else ""
        self._running = found is not None and bool(found["State"]["Running"])
        self._ended = found["State"] if found else None
        return found

    def _may_be_taken(self, found: dict[str, Any]) -> bool:
        labels = found["Config"].get("Labels") or {}
        if labels.get(INCARNATION_LABEL) == self.reclaim_launch.incarnation:
            return True
        return self._is_own(labels) and not found["State"]["Running"]

    def _is_own(self, labels: Mapping[str, str] | None) -> bool:
        key = SessionKey(self.user.name, self.name)
        return containers.is_of(labels, key, self.realm)

    async def stop(self, now: bool = False) -> None:
        """End the container, and wait until its name is free."""
        await super().stop(now)
        await self._await_end(lambda: not self.object_id)

    async def _await_end(self, ended: Callable[[], bool]) -> bool:
        async def looked() -> bool:
            try:
                await self.get_object()
            except Unreachable:  # nothing is known
                return False
            return ended()

        with suppress(TimeoutError):
            await exponential_backoff(
                looked, f"container {self.object_name} did not end", timeout=END_SECONDS
            )
            return True
        self.log.warning("%s: the container has not ended yet", self.object_name)
        return False


class ReclaimDockerSpawner(ReclaimMixin, SessionContainerSpawner):
    """Sessions in Docker's containers that can be suspended and resumed."""

    def load_state(self, state: dict[str, Any]) -> None:
        # DockerSpawner's own containers are known only by this.
        super().load_state(state)
        if not self.reclaim_pointer.begun:
            self.object_id = state.get("object_id", "")

    async def reclaim_former(self) -> bool:
        """Whether DockerSpawner itself started it, and its end is not known."""
        if not self.object_id:
            return False
        with suppress(Unreachable):
            await self.get_object()
        return self.reclaim_alive()

    def reclaim_location(self) -> Location:
        return Location(pod=self.object_id or "", name=self.object_name)

    def reclaim_take(self, location: Location) -> None:
        self.object_id = location.pod
        self.object_name = location.name or self.object_name

    def reclaim_alive(self) -> bool:
        return bool(self.object_id) and self._running

    async def reclaim_died(self) -> bool:
        return await self._await_end(lambda: not self._running)

    def reclaim_ending(self, status: Any) -> ReclaimError:
        # A container removed meanwhile has no status.
        del status
        if self._ended is None:
            return endings.by_itself("its container is gone")
        if self._ended.get("OOMKilled"):
            return Refused(Reason.SESSION_OUT_OF_MEMORY)
        return endings.by_status(int(self._ended.get("ExitCode") or 0))

    async def reclaim_find(self, incarnation: str) -> Location | None:
        label = f"{INCARNATION_LABEL}={incarnation}"
        found = [
            container
            for container in await self.docker("containers", filters={"label": label})
            if self._is_own(container["Labels"])
        ]
        if not found:
            return None
        # Images may have labels, too: the first is the one that the Hub has made.
        first = min(found, key=lambda container: int(container["Created"]))
        return Location(pod=first["Id"], name=first["Names"][0].lstrip("/"))

    async def reclaim_where(self, port: int) -> str:
        del port  # Docker knows where that one is published
        return self._url(*await self.get_ip_and_port())

    async def reclaim_variable(self, name: str) -> str:
        found = await self.get_object()
        for word in found["Config"]["Env"] or () if found else ():
            key, _, value = word.partition("=")
            if key == name:
                return str(value)
        return ""

    async def reclaim_end(self) -> None:
        if self.object_id:
            with suppress(APIError):  # gone, or being removed
                await self.docker(
                    "remove_container", self.object_id, v=True, force=True
                )
            await self._await_end(lambda: not self.object_id)
        self.reclaim_take(Location())


def _refused(why: str) -> Refused:
    return Refused(Reason.PLACE_REFUSED, who="Docker", place="container", why=why)
