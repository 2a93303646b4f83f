"""Calls that a spawner defines for a session's processes, container or pod.

The spawners of ``hub/local``, ``hub/docker`` and ``hub/kube`` fill it in.
``lifecycle.py`` decides what is started or ended, and when.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from traitlets import HasTraits, Unicode
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.models import Identity, SessionKey
from jupyterhub_gpu_reclaim.hub.spawner.state import Choice
from jupyterhub_gpu_reclaim.session_init import command_line
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from jupyterhub.spawner import Spawner as Base

    from jupyterhub_gpu_reclaim.common.errors import ReclaimError
    from jupyterhub_gpu_reclaim.hub.spawner.state import Location
else:
    # A mixin of plain HasTraits would silently ignore c.ReclaimMixin.x.
    Base = Configurable

#: Variables set for the init of a hold instead of a fresh token, so that the
#: environment of its pod or container shows the session's own values.
TOKENS = ("JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The purpose of the spawner's own next start."""

    #: ``hold``: only the session's init, under which a checkpoint is restored.
    mode: Literal["start", "hold"] = "start"
    incarnation: str = ""
    session: str = ""  #: id of the session, through all its returns
    account: str = ""  #: the account of the Hub's user that it belongs to
    identity: Identity | None = None  #: of the suspended session (``hold``)
    image: str = ""  #: as it was named at the session's fresh start (``hold``)
    choice: Choice | None = None  #: of the session's fresh start (``hold``)


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """The purpose of a container: its init, and the session that is to come back."""

    init: InitArguments
    saved: Identity | None = None
    python: str = "python3"  #: the interpreter in the image

    @property
    def command(self) -> list[str]:
        return [*command_line.inline(self.python), command_line.written(self.init)]


class SessionPlacement(Base):
    """A spawner whose sessions can be found again, adopted and ended.

    Every spawner has to define the abstract methods.
    """

    #: Purpose of the next start; set before ``start()`` is called.
    reclaim_launch = Launch()
    #: What the last place gave to its session (``given.settle``).
    reclaim_given: Mapping[str, str] = {}

    #: Cleanups of failed or cancelled starts, by server: one table for all spawners,
    #: since the Hub may make another spawner of that server meanwhile.
    reclaim_cleanups: ClassVar[dict[SessionKey, asyncio.Task[None]]] = {}

    @property
    def reclaim_key(self) -> SessionKey:
        return SessionKey(self.user.name, self.name)

    @abstractmethod
    def reclaim_location(self) -> Location:
        """The place where the session runs, to find it again after a Hub's restart."""

    def reclaim_image(self) -> str:
        """The name of the image of what was just started; empty if irrelevant."""
        return ""

    def reclaim_choice(self) -> Choice:
        return Choice(options=dict(self.user_options), given=dict(self.reclaim_given))

    @abstractmethod
    def reclaim_take(self, location: Location) -> None:
        """Take over a session that runs there; the empty location is none."""

    @abstractmethod
    def reclaim_alive(self) -> bool:
        """Whether the session that was taken over lives."""

    def reclaim_ending(self, status: Any) -> ReclaimError:
        """The reason why a session ended unasked; ``status`` is that of ``poll()``."""
        if isinstance(status, int):
            return endings.by_status(status)
        return endings.by_itself(str(status))

    async def reclaim_died(self) -> bool:
        """Whether the session is dead, now that the service says so."""
        return not self.reclaim_alive()

    def reclaim_frozen(self) -> bool | None:
        """Whether the session's programs are stopped, as those of a captured one are.

        None: only the node knows.
        """
        return None

    async def reclaim_former(self) -> bool:
        """Whether the process was started by the spawner that this one has replaced."""
        # Called only if nothing is known that this one has started.
        return False

    @abstractmethod
    async def reclaim_find(self, incarnation: str) -> Location | None:
        """Look for an incarnation that the Hub has lost sight of.

        Raises:
            Unreachable: that is unknown now.
        """

    @abstractmethod
    async def reclaim_where(self, port: int) -> Any:
        """The server's address, as ``start()`` would return it."""

    async def reclaim_waiting(self, tell: Callable[[str], None]) -> None:
        """Report what a session that is being placed waits for, until cancelled."""

    @abstractmethod
    async def reclaim_variable(self, name: str) -> str:
        """A variable that the running session was started with; empty if unknown."""

    async def reclaim_token(self) -> str:
        return await self.reclaim_variable("JUPYTERHUB_API_TOKEN")

    async def reclaim_port(self) -> int:
        """The port that the running session was started on; 0 if unknown."""
        with suppress(ValueError):
            url = await self.reclaim_variable("JUPYTERHUB_SERVICE_URL")
            return urlsplit(url).port or 0
        return 0

    @abstractmethod
    async def reclaim_end(self) -> None:
        """End the session at once, whatever it holds; idempotent."""


class RealmTraits(HasTraits):
    """Settings of spawners that make their sessions' places themselves."""

    realm = Unicode(
        "",
        help="""Name that tells this Hub's sessions from another's on the same machines.

        The agents of these sessions must have the same `AgentApp.realm`. Empty (the
        default) is right where no other Hub has sessions there. Example: ``teaching``.
        """,
    ).tag(config=True)

    user: Any  # of JupyterHub
    name: Any
    reclaim_launch = Launch()
    reclaim_given: Mapping[str, str] = {}

    def reclaim_init(self) -> InitArguments:
        """How the init of the next start is called."""
        launch = self.reclaim_launch
        return InitArguments(
            launch.incarnation,
            self.user.name,
            self.name,
            self.realm,
            holding=launch.mode == "hold",
            session=launch.session,
            account=launch.account,
        )


class ImageTraits(RealmTraits):
    """Settings of spawners whose places are containers of an image."""

    session_python = Unicode(
        "python3",
        help="""The Python (3.7 or later) in the image that runs the session's init.

        A name in the image's PATH, or a path. An image without any Python cannot be
        used with this spawner. Set it where the image has it elsewhere.
        """,
    ).tag(config=True)

    def reclaim_purpose(self) -> Purpose:
        return Purpose(
            init=self.reclaim_init(),
            saved=self.reclaim_launch.identity,
            python=self.session_python,
        )
