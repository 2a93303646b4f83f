"""Spawner state, written ahead, and the connection to the service; placement hooks.

It writes the pointer into the Hub's database ahead of every step, and asks the service;
it starts and ends nothing. ``start.py`` and ``stop.py`` build on it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from jupyterhub.utils import url_escape_path
from traitlets import Float, Unicode
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME
from jupyterhub_gpu_reclaim.common.clock import Clock, SystemClock
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from jupyterhub_gpu_reclaim.hub.spawner import logins
from jupyterhub_gpu_reclaim.hub.spawner.state import KEY, Place, Pointer, PointerPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub.spawner import Spawner as Base

    from jupyterhub_gpu_reclaim.common.models import Failure, Identity
else:
    # A mixin of plain HasTraits would silently ignore c.ReclaimMixin.x.
    Base = Configurable


#: Deleted logins of one server that may become valid again, each for one session.
MOST_LAID_ASIDE = 16


class PointerKeeper(Base):
    """Keeps one server's pointer; the hooks at the end are for the placement."""

    reclaim_service = Unicode(
        "",
        help="""Address of the service: ``http://127.0.0.1:10101`` or ``unix:/path``.

        ``hub.config.configure(c)`` sets it. Empty: nothing can be suspended, and a
        server starts and stops as it would without this package.
        """,
    ).tag(config=True)

    reclaim_token_file = Unicode(
        "",
        help="""File with the token that the Hub's process shows to the service.

        ``hub.config.configure(c)`` makes it. Only root may be able to read it.
        """,
    ).tag(config=True)

    reclaim_kept_days = Float(
        7.0,
        help="""Days that a saved session is kept after "start fresh".

        Only for the sentence on the button; the service does the keeping.
        """,
    ).tag(config=True)

    reclaim_timeout = Float(
        10.0,
        help="""Seconds to wait for an answer of the service to a quick question.""",
    ).tag(config=True)

    reclaim_slow_timeout = Float(
        180.0,
        help="""Seconds to wait for the service where it must end something first.

        A suspend under way is called off or finished, or processes are ended. Longer
        than the service's own `ReclaimService.settle_limit`.
        """,
    ).tag(config=True)

    reclaim_mode = "start"  #: for ``super().start()``: start, or hold
    reclaim_incarnation = ""
    #: What the session to be held a place for was (``hold``).
    reclaim_identity: Identity | None = None
    reclaim_generation = 0

    _clock: Clock = SystemClock()
    _pointer = Pointer()
    _starting = False
    _stopping = False

    # --- what templates and other parts ask ---

    @property
    def reclaim_suspended(self) -> bool:
        """Whether a visit resumes something: a suspended session, a stopped tree."""
        kept = self._pointer.phase is PointerPhase.UNKNOWN and self.reclaim_alive()
        return (self._pointer.saved or kept) and not self._starting

    @property
    def reclaim_saved_ago(self) -> str:
        """Time since its suspend: "12 min ago"; empty if not known."""
        at = self._pointer.saved_at
        past = self._clock.now() - at
        if not at or not self._pointer.saved:
            return ""
        return "just now" if past < 5 else f"{text.duration(past)} ago"

    @property
    def reclaim_releasing(self) -> bool:
        """Whether it is captured and its programs are being ended right now."""
        return self._stopping and self._pointer.phase is PointerPhase.RELEASING

    @property
    def reclaim_key(self) -> SessionKey:
        """This server's name for all parts."""
        return SessionKey(self.user.name, self.name)

    @property
    def reclaim_fresh_url(self) -> str:
        """The service's page that offers to start fresh."""
        return f"{self._prefix}/sessions/{self.reclaim_key.path}/fresh"

    @property
    def reclaim_spawn_url(self) -> str:
        """The Hub's page that starts this server."""
        server = f"/{url_escape_path(self.name)}" if self.name else ""
        return f"{self.hub.base_url}spawn/{self.user.escaped_name}{server}"

    @property
    def _prefix(self) -> str:
        """Path of the service, on its own address as on the Hub's."""
        base = str(self.hub.base_url).removesuffix("hub/")
        return f"{base}services/{SERVICE_NAME}"

    def get_env(self) -> dict[str, str]:
        """Adds the key for the tab tokens of the session's open tabs."""
        env: dict[str, str] = super().get_env()
        if self.reclaim_service and self.reclaim_token_file:
            with suppress(OSError):
                secret = Path(self.reclaim_token_file).read_text().strip().encode()
                made = tab_tokens.session_key(
                    secret, self.reclaim_key, self._clock.now()
                )
                env[tab_tokens.VARIABLE] = made
        return env

    # --- state ---

    def get_state(self) -> dict[str, Any]:
        """What the database keeps; never a token (T13)."""
        state = dict(super().get_state())
        if self._pointer != Pointer():
            state[KEY] = self._pointer.to_state()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """After a restart of the Hub, and for every new spawner object."""
        super().load_state(state)
        self._pointer = Pointer.from_state(state.get(KEY))
        self.reclaim_incarnation = self._pointer.incarnation
        self.reclaim_take(self._pointer.place)
        # Else a resume that fails wipes OAuth client and browser logins (T4).
        self.will_resume = self._pointer.precious

    def clear_state(self) -> None:
        """The Hub calls this at stop and before start; the pointer outlives both."""
        super().clear_state()
        if self._pointer.phase is not PointerPhase.NONE:
            self.reclaim_take(self._pointer.place)

    def _point(self, **changes: Any) -> None:
        """Change the pointer and write it to the database now (T6)."""
        if changes.get("checkpoint", self._pointer.checkpoint) != (
            self._pointer.checkpoint
        ):
            changes["saved_at"] = self._clock.now() if changes["checkpoint"] else 0.0
        self._pointer = msgspec.structs.replace(self._pointer, **changes)
        self.will_resume = self._pointer.precious
        logins.save_state(self)

    def _forget(self) -> None:
        """No checkpoint and no process is left: drop pointer and old login (T5).

        What was set aside may be brought back under that login, and no other one.
        """
        deleted = logins.hash_of(self, self._pointer.token_id)
        logins.delete_token(self, self._pointer.token_id)
        aside = [each for each in (*self._pointer.laid_aside, deleted) if each]
        self._pointer = Pointer(laid_aside=tuple(aside[-MOST_LAID_ASIDE:]))
        self.will_resume = False
        logins.save_state(self)

    # --- asking the service ---

    @property
    def _service(self) -> ServiceClient:
        """The client, shared by all spawners.

        Raises:
            Unreachable: no service is configured, or its token cannot be read.
        """
        if not self.reclaim_service:
            raise Unreachable(Reason.SERVICE_UNREACHABLE, detail="not configured")
        return _client(
            self.reclaim_service,
            self.reclaim_token_file,
            self._prefix,
            self.reclaim_timeout,
            self.reclaim_slow_timeout,
        )

    def _placement(self) -> Placement:
        return Placement(
            key=self.reclaim_key,
            incarnation=self.reclaim_incarnation or "none",
            checkpoint=self._pointer.checkpoint,
            owner=logins.account(self),
        )

    async def _tell_service(self, call: str, failure: Failure | None = None) -> None:
        """Report what has happened; a lost report does no harm."""
        placement = msgspec.structs.replace(self._placement(), failure=failure)
        with suppress(Unreachable):
            service = self._service
            try:
                await getattr(service, call)(placement)
            except ReclaimError as error:
                self.log.warning("%s: service, %s: %s", self.reclaim_key, call, error)

    # --- hooks: where sessions run ---

    def reclaim_place(self) -> Place:
        """Where the session runs, to find it again after a restart of the Hub."""
        raise NotImplementedError

    def reclaim_take(self, place: Place) -> None:
        """Take over what runs there; the empty place is none."""
        raise NotImplementedError

    def reclaim_alive(self) -> bool:
        """Whether the place taken over lives."""
        raise NotImplementedError

    async def reclaim_died(self) -> bool:
        """Whether it is dead, now that the service says so."""
        return not self.reclaim_alive()

    def reclaim_frozen(self) -> bool | None:
        """Whether its programs are stopped, as those of a captured session are.

        None: that cannot be seen from here.
        """
        raise NotImplementedError

    async def reclaim_find(self, incarnation: str) -> Place | None:
        """Look for an incarnation that the Hub has lost sight of."""
        raise NotImplementedError

    async def reclaim_where(self, port: int) -> Any:
        """What ``start()`` returns for the place taken over: its server's address."""
        raise NotImplementedError

    async def reclaim_waiting(self, tell: Callable[[str], None]) -> None:
        """Report what a place that is being made waits for, until cancelled."""

    async def reclaim_token(self) -> str:
        """The API token that the running session was started with; empty: unknown."""
        raise NotImplementedError

    async def reclaim_port(self) -> int:
        """The port that the running session was started on; 0: unknown."""
        raise NotImplementedError

    async def reclaim_end(self) -> None:
        """End the place at once, whatever it holds; none is fine."""
        raise NotImplementedError


@cache
def _client(
    address: str, token_file: str, prefix: str, timeout: float, slow_timeout: float
) -> ServiceClient:
    """One client per service."""
    try:
        token = Path(token_file).read_text().strip()
    except OSError as error:
        raise Unreachable(Reason.SERVICE_UNREACHABLE, detail=str(error)) from None
    return ServiceClient(
        address, token, prefix=prefix, timeout=timeout, slow_timeout=slow_timeout
    )
