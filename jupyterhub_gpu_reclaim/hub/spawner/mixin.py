"""Makes a spawner's sessions suspendable: what JupyterHub and KubeSpawner call.

``class MySpawner(ReclaimMixin, SomeSpawner)`` with ``placement.py`` filled in;
``docs/how-to/another-spawner.md`` says how. Each call goes to the ``SessionLifecycle``
behind it, which asks the service. It never starts a session cold while there may be a
checkpoint, and never writes a token anywhere.

Every trap of JupyterHub that is handled here is listed, with its test, in
``docs/reference/jupyterhub-traps.md``; "T4" in a comment points there.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from jupyterhub.spawner import Spawner
from jupyterhub.utils import maybe_future, url_escape_path
from tornado import web
from traitlets import Bool, Unicode

from jupyterhub_gpu_reclaim.common import deletion_orders, text
from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    RestoreFailed,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub import patches
from jupyterhub_gpu_reclaim.hub.client import ServiceClient
from jupyterhub_gpu_reclaim.hub.spawner import kept, refusal
from jupyterhub_gpu_reclaim.hub.spawner.known_servers import KnownServers
from jupyterhub_gpu_reclaim.hub.spawner.lifecycle import SessionLifecycle
from jupyterhub_gpu_reclaim.hub.spawner.placement import SessionPlacement
from jupyterhub_gpu_reclaim.hub.spawner.refusal import StartRefused
from jupyterhub_gpu_reclaim.hub.spawner.state import KEY, Pointer, PointerPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion

patches.apply()
kept.apply()

_CLOCK = SystemClock()
#: Tasks that outlive their spawner: asyncio alone would forget them.
_TELLING: set[asyncio.Future[None]] = set()


class ReclaimMixin(SessionPlacement):
    """Cooperative mixin for spawners: ``super()`` places, the lifecycle plans."""

    reclaim_service = Unicode(
        "",
        help="""Address of the service: ``unix:`` and the path of its socket.

        ``hub.config.configure(c)`` sets it; without that, you do. Empty: nothing can be
        suspended, and a server starts and stops as it would without this package.
        """,
    ).tag(config=True)

    reclaim_token_file = Unicode(
        "",
        help="""File with the secret of the keys that open tabs show to the service.

        ``hub.config.configure(c)`` makes it. Only root may be able to read it.
        Set it only where the Hub is configured without that.
        """,
    ).tag(config=True)

    will_resume = Bool(
        False,
        help="""Whether the Hub keeps the session's login at a stop.

        The mixin's own: another spawner's may be read-only (DockerSpawner's), and
        whether a session comes back is not known there.
        """,
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a spawner that cannot place sessions, as JupyterHub's own base does.

        Raises:
            NotImplementedError: methods of the placement are missing.
        """
        super().__init_subclass__(**kwargs)
        missing = [
            f"`{name}`"
            for name in dir(SessionPlacement)
            if getattr(getattr(cls, name), "__isabstractmethod__", False)
        ]
        if missing and issubclass(cls, Spawner):
            raise NotImplementedError(
                f"class `{cls.__name__}` needs to define {', '.join(missing)};"
                " docs/how-to/another-spawner.md says what each is for."
            )

    @cached_property
    def _lifecycle(self) -> SessionLifecycle:
        return SessionLifecycle(
            self, self._service, _CLOCK, KnownServers(self._shared_folder())
        )

    def _shared_folder(self) -> Path | None:
        """The service's folder on the Hub's machine; None: there is no service."""
        if not (self.reclaim_service and self.reclaim_token_file):
            return None
        return Path(self.reclaim_token_file).parent

    def _service(self) -> ServiceClient:
        """The client, shared by all spawners.

        Raises:
            Unreachable: no service is configured.
        """
        if not self.reclaim_service:
            raise Unreachable(Reason.SERVICE_UNREACHABLE, detail="not configured")
        return _client(self.reclaim_service, self._prefix)

    # --- start, poll, stop ---

    async def start(self) -> Any:
        """Start cold, restore, or adopt what still runs, as the service plans.

        Raises:
            StartRefused: there is a checkpoint that cannot come back now; or another
                spawner starts this one, and passes nothing of it on to the Hub: a
                session would be suspended, and its login deleted.
        """
        try:
            if self.reclaim_service and self._is_inside():
                what = f"{type(self).__name__} cannot be inside of another spawner."
                raise Refused(Reason.SETTING_INVALID, what=what)
            return await self._lifecycle.start(super().start)
        except ReclaimError as error:
            self.log.warning("%s: not started: %s", self.reclaim_key, error)
            raise self._refused(error) from None

    def _is_inside(self) -> bool:
        return self.user.spawners.get(self.name, self) is not self

    def reclaim_refusal(self, error: Exception, seconds: float = 0.0) -> Exception:
        """Translate the error of a start that failed for any cause, for the Hub.

        A return that fails is not a failure of the Hub, which would count it and end
        itself (T16), whatever hook, profile, login or limit has stopped it. If no
        session was to come back, the error is returned as it is.
        """
        own = isinstance(error, StartRefused | web.Finish)  # it leads to the login
        if own or not self.reclaim_pointer.precious:
            return error
        return self._refused(refusal.reason_of(error, seconds))

    async def run_auth_state_hook(self, auth_state: Any) -> None:
        # The Hub's page calls it before starts, too.
        try:
            await super().run_auth_state_hook(auth_state)
        except Exception as error:
            if (told := self.reclaim_refusal(error)) is error:
                raise
            self.log.warning("%s: auth_state_hook", self.reclaim_key, exc_info=True)
            raise told from error

    async def run_pre_spawn_hook(self) -> None:
        # A suspended session may have been deleted or set aside since, and the service
        # may not have said so.
        if self.post_stop_hook is not None:
            await self._settle_end()
        await maybe_future(super().run_pre_spawn_hook())

    async def reclaim_asked(self) -> None:
        """Check what our service's stop is for, before the Hub does anything.

        The service also requests one if what was suspended has been deleted: the Hub
        has nothing to stop then, and forgets the session.

        Raises:
            HTTPError: 400: a start has begun, which it does not mean. 409: what runs is
                of the spawner that this one has replaced.
        """
        if self.pending == "spawn":
            raise web.HTTPError(400, f"{self.reclaim_key} is pending spawn")
        if not self.active:
            await self._settle_end()
        elif await self._lifecycle.is_formers():
            raise web.HTTPError(409, "It was started by the former spawner.")

    async def _settle_end(self) -> None:
        """Run the hook of an end, and forget, if what was suspended is over."""
        if await self._lifecycle.is_over():
            await self._tell_end()

    async def run_post_stop_hook(self) -> None:
        # The Hub calls it after each stop, of which a suspend is one, and after each
        # start that has failed.
        if self._lifecycle.ended:
            await maybe_future(super().run_post_stop_hook())

    async def _tell_end(self) -> None:
        try:
            await maybe_future(super().run_post_stop_hook())
        except Exception:  # an administrator's; as the Hub treats it
            self.log.exception("%s: post_stop_hook", self.reclaim_key)

    def _refused(self, error: ReclaimError) -> Exception:
        # The Hub's memory or the service's: one of them knows of a suspended session.
        pointer = self.reclaim_pointer
        suspended = pointer.precious or isinstance(error, RestoreFailed)
        # Nothing may be offered that ends what runs.
        suspended = suspended and error.reason is not Reason.NOT_ADOPTED
        return StartRefused(
            error,
            spawn_url=self.reclaim_spawn_url,
            fresh_url=self.reclaim_fresh_url if suspended else "",
        )

    def start_polling(self) -> None:
        # The Hub's first call after a start or a check.
        self._lifecycle.watched()
        super().start_polling()

    def add_poll_callback(self, callback: Any, *args: Any, **kwargs: Any) -> None:
        # The Hub's last call of a start that went well.
        self._lifecycle.answered()
        super().add_poll_callback(callback, *args, **kwargs)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        # A subclass may work for some time before it calls our start, and after that.
        reporter = self._lifecycle.reporter
        before = self._lifecycle.expects_nothing
        if before:
            async for line in super().progress():
                yield line
        async for line in reporter.lines():
            yield line
        if reporter.handed_over and not before:
            async for line in super().progress():
                yield line

    async def poll(self) -> int | None:
        return await self._lifecycle.poll(super().poll)

    async def stop(self, now: bool = False) -> None:
        stop, asker = super().stop, patches.ASKER.get()
        await self._lifecycle.stop(lambda: stop(now=now), asker)

    # --- other calls of the Hub ---

    async def get_options_form(self) -> Any:
        # None on a resume: the session is what it was (T14).
        return "" if self.reclaim_suspended else await super().get_options_form()

    def get_env(self) -> dict[str, str]:
        """Add the key for tab tokens, and keep libraries from what CRIU cannot dump."""
        # libuv before 1.49 (Node 20) opens an io_uring if it can, and does without if
        # this says so; for later ones ``session_init`` has a filter. hwloc looks for
        # GPUs through OpenCL, for the daemon that ``MPI_Init`` starts: without CUDA
        # that daemon then holds the cards, and cannot be emptied. Configured values
        # stay.
        env: dict[str, str] = super().get_env()
        env.setdefault("UV_USE_IO_URING", "0")
        env.setdefault("HWLOC_COMPONENTS", "-opencl,-cuda,-nvml,-gl")
        if self.reclaim_service and self.reclaim_token_file:
            with suppress(OSError, ValueError):
                secret = Path(self.reclaim_token_file).read_text().strip().encode()
                session = self.reclaim_launch.session
                env[tab_tokens.VARIABLE] = tab_tokens.session_key(
                    secret, self.reclaim_key, session, time.time()
                )
        return env

    def get_state(self) -> dict[str, Any]:
        # Never a token (T13).
        state = dict(super().get_state())
        if self.reclaim_pointer != Pointer():
            state[KEY] = self.reclaim_pointer.to_state()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        # After a restart of the Hub, and for every new spawner.
        super().load_state(state)
        self._lifecycle.load(Pointer.from_state(state.get(KEY)))

    def clear_state(self) -> None:
        # At stop and before start; the pointer outlives both.
        self._lifecycle.drop_unused(self.api_token)
        super().clear_state()
        self._lifecycle.close_start()
        if self.reclaim_pointer.phase is not PointerPhase.NONE:
            self.reclaim_take(self.reclaim_pointer.location)

    async def rename(self, old_name: str, new_name: str) -> None:
        """Refuse while suspended: URL, cookie and client carry the name (T10)."""
        if self.reclaim_pointer.precious:
            reason = Reason.RENAME_SUSPENDED
            raise web.HTTPError(409, f"{reason.sentence()} {reason.hint}")
        await super().rename(old_name, new_name)

    async def delete_forever(self) -> None:
        """Delete the server's checkpoints and its login, too (T5, T10)."""
        await maybe_future(super().delete_forever())
        asker, deletion = patches.ASKER.get(), self._lifecycle.deletion()
        suspended = self.reclaim_pointer.precious
        program = asker is not None and asker.program and asker.deletes_user
        if asker is not None and program and suspended:
            kept = msgspec.structs.replace(deletion, kept_from=asker.who)
            await self._tell_deletion(kept, None)
            self._lifecycle.delete()
            return
        written = self._order_deletion(deletion)
        if written is not None:
            deletion = msgspec.structs.replace(deletion, order=written.stem)
        telling = asyncio.ensure_future(self._tell_deletion(deletion, written))
        if written is None:
            await telling
        else:
            # The Hub does not wait: until it has deleted the account, a visit would
            # start a session of no account.
            _TELLING.add(telling)
            telling.add_done_callback(_TELLING.discard)
        self._lifecycle.delete()
        if suspended:
            await self._tell_end()

    async def _tell_deletion(self, deletion: Deletion, written: Path | None) -> None:
        try:
            await self._service().forget(deletion)
            if written is not None:  # the service has done so, where it knew of it
                deletion_orders.remove(written)
        except (ReclaimError, OSError) as error:
            later = "the service does it later" if written else "it is NOT repeated"
            self.log.warning("%s: forget, %s: %s", deletion.key, later, error)

    def _order_deletion(self, deletion: Deletion) -> Path | None:
        # The Hub deletes a server once: neither a service that is away nor a lost
        # answer may lose that.
        folder = self._shared_folder()
        if folder is None:
            return None
        try:
            return deletion_orders.write(folder, deletion)
        except OSError as error:
            self.log.warning("%s: no order to delete: %s", deletion.key, error)
            return None

    # --- what templates and placements ask ---

    @property
    def reclaim_pointer(self) -> Pointer:
        return self._lifecycle.pointer

    @property
    def reclaim_suspended(self) -> bool:
        """Whether a visit resumes something: a suspended session, a stopped tree."""
        pointer = self.reclaim_pointer
        unknown = pointer.phase is PointerPhase.UNKNOWN and pointer.begun
        kept = unknown and self.reclaim_alive()
        return (pointer.suspended or kept) and not self._lifecycle.starting

    @property
    def reclaim_resuming(self) -> bool:
        """Whether a start is under way that is to bring a session back."""
        # From its first moment on: the Hub's own work before it may take a while.
        return self.pending == "spawn" and bool(self.reclaim_pointer.checkpoint)

    @property
    def reclaim_releasing(self) -> bool:
        """Whether the session is captured, and its programs are being ended now."""
        releasing = self.reclaim_pointer.phase is PointerPhase.RELEASING
        return self._lifecycle.stopping and releasing

    @property
    def reclaim_suspended_ago(self) -> str:
        """Time since its suspend: "12 min ago"; empty if unknown."""
        at = self.reclaim_pointer.suspended_at
        if not at or not self.reclaim_pointer.suspended:
            return ""
        return text.ago(_CLOCK.now() - at)

    @property
    def reclaim_text(self) -> Any:
        # For templates.
        return text

    @property
    def reclaim_story(self) -> dict[str, Any]:
        return self._lifecycle.story

    @property
    def reclaim_fresh_url(self) -> str:
        return f"{self._pages}/sessions/{self.reclaim_key.path}"

    @property
    def reclaim_spawn_url(self) -> str:
        server = f"/{url_escape_path(self.name)}" if self.name else ""
        return f"{self.hub.base_url}spawn/{self.user.escaped_name}{server}"

    @property
    def _pages(self) -> str:
        """The service as a browser finds it: under subdomains it has a host, too."""
        settings = self.user.settings
        hub = urlsplit(settings.get("subdomain_host", ""))
        if not hub.hostname:
            return self._prefix
        host = settings["subdomain_hook"](SERVICE_NAME, hub.hostname, kind="service")
        port = f":{hub.port}" if hub.port else ""
        return f"{hub.scheme}://{host}{port}{self._prefix}"

    @property
    def _prefix(self) -> str:
        base = str(self.hub.base_url).removesuffix("hub/")
        return f"{base}services/{SERVICE_NAME}"


@cache
def _client(address: str, prefix: str) -> ServiceClient:
    return ServiceClient(address, prefix=prefix)
