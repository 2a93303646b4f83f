"""TLJH's sessions, suspendable: its users and groups, and SystemdSpawner's settings.

The order of the bases is the design: a start goes through the mixin, then TLJH's
``UserCreatingSpawner``, which makes the user, and then, instead of SystemdSpawner, to a
session of ours. SystemdSpawner's settings keep their names.

A server that TLJH's own spawner started, before this one was configured, is a unit of
systemd; it is watched and ended as such.
"""

from __future__ import annotations

from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any

import msgspec
from systemdspawner import SystemdSpawner, systemd
from tljh.user_creating_spawner import UserCreatingSpawner
from traitlets import Bool

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.local.spawner import (
    ReclaimLocalSpawner,
    SessionProcessSpawner,
)
from jupyterhub_gpu_reclaim.hub.spawner.state import Location

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser


class SystemdSessionSpawner(SessionProcessSpawner, SystemdSpawner):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.private_tmp = self.private_tmp or self.isolate_tmp

    def system_username(self) -> str:
        # TLJH's spawner sets the template at each start.
        return str(self._expand_user_vars(self.username_template))

    async def start(self) -> tuple[str, int]:
        # As with SystemdSpawner: a unit that the Hub knows is polled, and not started.
        if await self._is_unit():
            self.log.warning(
                "%s: ends %s, which runs and is not in the Hub's database",
                self._log_name,
                self.unit_name,
            )
            await systemd.stop_service(self.unit_name)
        return await super().start()

    async def poll(self) -> int | None:
        if await self._is_unit():
            return None
        return await super().poll()

    async def stop(self, now: bool = False) -> None:
        if await self._is_unit():
            await systemd.stop_service(self.unit_name)
        else:
            await super().stop(now=now)

    async def _is_unit(self) -> bool:
        """Whether TLJH's own spawner has started it."""
        if self.place != Location():
            return False
        return bool(await systemd.service_running(self.unit_name))

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        entry = self._system_user()
        env.update(USER=entry.pw_name, LOGNAME=entry.pw_name, HOME=entry.pw_dir)
        env["SHELL"] = self.default_shell
        paths = [self._expand_user_vars(path) for path in self.extra_paths]
        env["PATH"] = ":".join([*paths, *filter(None, [env.get("PATH")])])
        return env

    def _home(self) -> str:
        if self.user_workingdir is None:
            return super()._home()
        return str(self._expand_user_vars(self.user_workingdir))

    def _command(self) -> list[str]:
        return [self._expand_user_vars(word) for word in super()._command()]

    def _rights_today(self) -> SystemUser:
        # Without ``sudo``, none of its programs gains more.
        today = super()._rights_today()
        return msgspec.structs.replace(
            today, no_new_privileges=bool(self.disable_user_sudo)
        )


class SystemUserSpawner(UserCreatingSpawner):
    """Makes the system user, with its groups, before a session starts."""

    def start(self) -> Awaitable[Any]:
        """Make the user, as TLJH does, and start the session.

        Raises:
            Refused: a program that makes users has failed.
        """
        try:
            starting: Awaitable[Any] = super().start()
        except (CalledProcessError, KeyError, OSError) as error:
            why = f"The system user of {self.user.name} could not be made."
            raise Refused(Reason.LAUNCH_FAILED, why=why, detail=str(error)) from None
        return starting


class ReclaimTLJHSpawner(ReclaimLocalSpawner, SystemUserSpawner, SystemdSessionSpawner):
    """TLJH's sessions that can be suspended and resumed."""

    async def reclaim_former(self) -> bool:
        return await self._is_unit() or await super().reclaim_former()

    # The Hub's unit has PrivateDevices= and PrivateTmp=.
    machine_mounts = Bool(True, help=SessionProcessSpawner.machine_mounts.help).tag(
        config=True
    )
