"""Calls that a spawner defines for a session's processes, container or pod.

The spawners of ``hub/local``, ``hub/docker`` and ``hub/kube`` fill it in. It starts,
finds and ends; what is started or ended, and when, is ``lifecycle.py``'s.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.models import Identity, SessionKey
from jupyterhub_gpu_reclaim.hub.spawner.state import Choice

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
    generation: int = 0  #: of its checkpoint (``hold``)
    image: str = ""  #: as it was named at the session's fresh start (``hold``)
    choice: Choice | None = None  #: of the session's fresh start (``hold``)


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
        """This server's name for all parts."""
        return SessionKey(self.user.name, self.name)

    @abstractmethod
    def reclaim_location(self) -> Location:
        """The place where the session runs, to find it again after a Hub's restart."""

    def reclaim_image(self) -> str:
        """The image of what was just started, by name; empty: that does not matter."""
        return ""

    def reclaim_choice(self) -> Choice:
        """The user's choice for what was just started."""
        return Choice(options=dict(self.user_options), given=dict(self.reclaim_given))

    @abstractmethod
    def reclaim_take(self, location: Location) -> None:
        """Take over a session that runs there; the empty location is none."""

    @abstractmethod
    def reclaim_alive(self) -> bool:
        """Whether the session that was taken over lives."""

    def reclaim_ending(self, status: Any) -> ReclaimError:
        """The reason why a session ended unasked; ``status``: what ``poll()`` said."""
        if isinstance(status, int):
            return endings.by_status(status)
        return endings.by_itself(str(status))

    async def reclaim_died(self) -> bool:
        """Whether the session is dead, now that the service says so."""
        return not self.reclaim_alive()

    @abstractmethod
    def reclaim_frozen(self) -> bool | None:
        """Whether the session's programs are stopped, as those of a captured one are.

        None: that cannot be seen from here.
        """

    async def reclaim_former(self) -> bool:
        """Whether what runs was started by the spawner that this one has replaced.

        Asked only where nothing is known that this one has started.
        """
        return False

    @abstractmethod
    async def reclaim_find(self, incarnation: str) -> Location | None:
        """Look for an incarnation that the Hub has lost sight of.

        Raises:
            Unreachable: whether it is there cannot be known now.
        """

    @abstractmethod
    async def reclaim_where(self, port: int) -> Any:
        """The server's address, which ``start()`` returns for what was taken over."""

    async def reclaim_waiting(self, tell: Callable[[str], None]) -> None:
        """Report what a session that is being placed waits for, until cancelled."""

    @abstractmethod
    async def reclaim_token(self) -> str:
        """The API token that the running session was started with; empty: unknown."""

    @abstractmethod
    async def reclaim_port(self) -> int:
        """The port that the running session was started on; 0: unknown."""

    @abstractmethod
    async def reclaim_end(self) -> None:
        """End the session at once, whatever it holds; none is fine."""
