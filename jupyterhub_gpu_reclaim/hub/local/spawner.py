"""Sessions on the Hub's own machine: processes in namespaces of their own.

``ReclaimLocalSpawner`` is what a ``jupyterhub_config.py`` names. It starts what
``LocalProcessSpawner`` would start, with the same home, environment, ``cmd``,
``shell_cmd``, ``popen_kwargs`` and log lines, but through ``session_init/launcher.py``,
so that the session can be suspended and outlives a restart of the Hub. The mixin
decides when to start, restore or release.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import random_port
from traitlets import Bool

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.local import launch
from jupyterhub_gpu_reclaim.hub.local.processes import (
    LocalSession,
    boot_id,
    find_former,
    find_session,
)
from jupyterhub_gpu_reclaim.hub.spawner import given
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.hub.spawner.placement import TOKENS, RealmTraits
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.session_init import launcher, session_init
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser, written

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.errors import ReclaimError

#: Prefixes of variables that steer root's own interpreters; the session gets these
#: through env(1) instead.
_LOADER_VARIABLES = ("LD_", "PYTHON", "GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_")
#: Seconds that making namespaces may take; 0.1 as a rule.
_LAUNCH_SECONDS = 30.0
#: Control group under which each session gets its own: that keeps it alive when the
#: Hub's systemd unit is restarted, and holds ``mem_limit`` and ``cpu_limit``.
_CGROUP_PARENT = "jupyterhub-gpu-reclaim"


class SessionProcessSpawner(RealmTraits, LocalProcessSpawner):
    """Starts, watches and ends one session's processes; suspends none."""

    run_as_hub_user = Bool(
        False,
        help="""Run sessions as the user that runs the Hub instead of as system users.

        Then no system users are needed, and there is no protection of users against
        each other: for demonstrations and tests only. Homes are folders
        of the users' names under ``/tmp``.
        """,
    ).tag(config=True)

    #: Where they have their homes then; the demo and the tests have others.
    homes = "/tmp/{username}"  # noqa: S108 - upstream's

    private_tmp = Bool(
        False,
        help="""Give each session a ``/tmp`` of its own, in memory, suspended with it.

        Off (the default): sessions share the machine's ``/tmp``, as they do with
        JupyterHub's own spawner; files that a suspended session has open there must
        still be there when it comes back. On where users' programs get in each other's
        way there.
        """,
    ).tag(config=True)

    machine_mounts = Bool(
        False,
        help="""Show each session the machine's files, not those of the Hub's unit.

        For a Hub whose systemd unit has ``PrivateDevices=yes`` or ``PrivateTmp=yes``:
        without this, its sessions see no GPU, and lose ``/tmp`` when the Hub is
        restarted. Off (the default): sessions see what the Hub sees.
        """,
    ).tag(config=True)

    place = Location()
    port: Any

    # --- start ---

    async def start(self) -> tuple[str, int]:
        """Start the session's init with its programs, or (``hold``) without any.

        Raises:
            Refused: the namespaces, the cgroup or the user cannot be had; or a session
                is to come back that was given something else.
        """
        if "\0" in self.user.name:  # no system user and no folder can be called so
            raise Refused(Reason.USER_MISSING, user=self.user.name)
        if self.port == 0:
            self.port = random_port()
        env = self.get_env()
        mounts = [("/tmp", "its own")] if self.private_tmp else []  # noqa: S108
        self.reclaim_given = given.settle(self.reclaim_launch, env, mounts)
        loader = {k: env.pop(k) for k in list(env) if k.startswith(_LOADER_VARIABLES)}
        command: list[str] = []
        if self.reclaim_launch.mode == "start":
            command = self._command()
            self.log.info("%s: starting %s", self._log_name, shlex.join(command))
            command = [
                "/usr/bin/env",
                *[f"{k}={v}" for k, v in loader.items()],
                *command,
            ]
        else:
            for secret in TOKENS:
                env.pop(secret, None)
        launcher.sweep_cgroups(_CGROUP_PARENT)
        self.place = await self._launch(self._init(command), env)
        self.pid = self.place.pid
        return (self.ip or "127.0.0.1", self.port)

    def _command(self) -> list[str]:
        command = [*self.cmd, *self.get_args()]
        if self.shell_cmd:
            return [*self.shell_cmd, shlex.join(command)]
        return command

    def get_args(self) -> list[str]:
        # Jupyter refuses to run as root without being told.
        args = list(super().get_args())
        if self.run_as_hub_user and os.geteuid() == 0 and "--allow-root" not in args:
            args.append("--allow-root")
        return args

    def _init(self, command: list[str]) -> list[str]:
        arguments = msgspec.structs.replace(
            self.reclaim_init(),
            system_user=None if self.run_as_hub_user else self._rights_today(),
            chdir=self._home() if command else "",
        )
        words = [*launch.PYTHON, session_init.__file__, written(arguments)]
        return [*words, "--", *command] if command else words

    def _rights_today(self) -> SystemUser:
        # Looked up now: a return keeps no more.
        entry = self._system_user()
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return SystemUser(entry.pw_uid, entry.pw_gid, tuple(groups))

    def system_username(self) -> str:
        """The system user that the session runs as; subclasses override it."""
        return str(self.user.name)

    def _system_user(self) -> pwd.struct_passwd:
        name = self.system_username()
        try:
            return pwd.getpwnam(name)
        except KeyError:
            raise Refused(Reason.USER_MISSING, user=name) from None

    def _home(self) -> str:
        if not self.run_as_hub_user:
            home = Path(self._system_user().pw_dir)
        else:
            home = Path(self.homes.format(username=self.user.name))
            home.mkdir(parents=True, exist_ok=True)
        while not home.is_dir():
            home = home.parent
        return str(home)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        if not self.run_as_hub_user:
            self._system_user()
            return dict(super().user_env(env))
        name = self.user.name
        home = self.homes.format(username=name)
        env.update(USER=name, HOME=home, SHELL="/bin/bash")
        return env

    async def _launch(self, init: list[str], env: dict[str, str]) -> Location:
        options = ["--cgroup-parent", _CGROUP_PARENT]
        options += ["--cgroup", self.reclaim_launch.incarnation]
        if self.mem_limit:
            options += ["--memory", str(int(self.mem_limit))]
        if self.cpu_limit:
            options += ["--cpu", str(self.cpu_limit)]
        if self.private_tmp:
            options.append("--private-tmp")
        if self.machine_mounts:
            options.append("--machine-mounts")
        ignored = launch.IGNORED.intersection(self.popen_kwargs)
        if ignored:
            names = ", ".join(sorted(ignored))
            self.log.warning("%s: popen_kwargs ignored: %s", self._log_name, names)
        return await launch.run(
            options, init, env, self.popen_kwargs, seconds=_LAUNCH_SECONDS
        )

    # --- watch ---

    async def poll(self) -> int | None:
        # Nobody waits for the init, which outlives the Hub: its status is not known.
        return None if LocalSession(self.place).alive() else 1

    async def _signal(self, sig: int) -> bool:
        session = LocalSession(self.place)
        return session.signal(signal.Signals(sig)) if sig else session.alive()

    async def wait_for_death(self, timeout: float = 10) -> bool:  # noqa: ASYNC109 - upstream's
        # The kernel tells. Upstream looks, more and more seldom: up to two seconds
        # late.
        return await LocalSession(self.place).wait(timeout)

    def clear_state(self) -> None:
        super().clear_state()
        self.place = Location()

    # --- end ---

    async def stop(self, now: bool = False) -> None:
        await super().stop(now=now)
        launcher.remove_cgroups(_CGROUP_PARENT, self.reclaim_launch.incarnation)

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        if self.run_as_hub_user:
            return paths
        return dict(await super().move_certs(paths))


class ReclaimLocalSpawner(ReclaimMixin, SessionProcessSpawner):
    """Local sessions that can be suspended and resumed."""

    def load_state(self, state: dict[str, Any]) -> None:
        # A server of LocalProcessSpawner is known by its pid.
        super().load_state(state)
        if not self.reclaim_pointer.begun and state.get("pid"):
            uid = self._expected_uid()
            started = self.orm_spawner.started if self.orm_spawner else None
            self.reclaim_take(find_former(state["pid"], uid, started))

    def _expected_uid(self) -> int:
        """The server's uid by its user; -1: there is no such user (any more)."""
        if self.run_as_hub_user:
            return os.geteuid()
        try:
            return self._system_user().pw_uid
        except Refused:
            return -1

    async def reclaim_former(self) -> bool:
        # load_state has found the one of LocalProcessSpawner.
        return self.reclaim_alive()

    def reclaim_location(self) -> Location:
        return self.place

    def reclaim_take(self, place: Location) -> None:
        self.place = place
        self.pid = place.pid

    def reclaim_alive(self) -> bool:
        return LocalSession(self.place).alive()

    def reclaim_ending(self, status: Any) -> ReclaimError:
        del status
        if self.place.boot and self.place.boot != boot_id():
            return endings.by_itself("its machine was started again")
        if launcher.oom_kills(_CGROUP_PARENT, self.reclaim_launch.incarnation):
            return Refused(Reason.SESSION_OUT_OF_MEMORY)
        return endings.by_itself("its log may say how")

    def reclaim_frozen(self) -> bool:
        return LocalSession(self.place).frozen()

    async def reclaim_find(self, incarnation: str) -> Location | None:
        return find_session(incarnation)

    async def reclaim_where(self, port: int) -> tuple[str, int]:
        return (self.ip or "127.0.0.1", port)

    async def reclaim_variable(self, name: str) -> str:
        return await asyncio.to_thread(LocalSession(self.place).variable, name)

    async def get_url(self) -> str:
        # A Hub killed in a start has not written it down.
        known = str(self.server.url)
        port, url = self.reclaim_pointer.port, urlsplit(known)
        if not port or url.port == port:
            return known
        host = f"[{self.ip}]" if ":" in self.ip else self.ip or "127.0.0.1"
        return url._replace(netloc=f"{host}:{port}").geturl()

    async def reclaim_end(self) -> None:
        session = LocalSession(self.place)
        if session.signal(signal.SIGKILL):
            await session.wait(self.kill_timeout)
        launcher.remove_cgroups(_CGROUP_PARENT, self.reclaim_launch.incarnation)
        self.reclaim_take(Location())
