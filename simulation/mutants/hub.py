"""Defects of the spawner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import StartPlan
from jupyterhub_gpu_reclaim.hub.spawner.known_servers import KnownServers
from jupyterhub_gpu_reclaim.hub.spawner.lifecycle import SessionLifecycle

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.hub.spawner.progress import ProgressReporter
    from simulation.mutants.patch import Patch

_plan_start = SessionLifecycle._plan_start
_login = SessionLifecycle._login
_stop = SessionLifecycle.stop


async def _cold_then(self: SessionLifecycle, reporter: ProgressReporter) -> StartPlan:
    try:
        return await _plan_start(self, reporter)
    except Unreachable:
        return StartPlan(action="cold")


COLD_WITHOUT_ANSWER: tuple[Patch, ...] = (
    (SessionLifecycle, "_plan_start", _cold_then),
)


_NEVER = property(lambda self: False, lambda self, value: None)


def _refused_beside_an_older_database(
    self: SessionLifecycle, token: str, minted: str, *, renew: bool
) -> int:
    """As it was then: what such a Hub does not know was refused, not adopted."""
    del renew
    return _login(self, token, minted, renew=False)


def _unheard_of(self: KnownServers, key: SessionKey) -> bool:
    """As it was then: an older database was all that the Hub knew."""
    del self, key
    return False


OLDER_DATABASE: tuple[Patch, ...] = ((KnownServers, "has", _unheard_of),)
REFUSED_START_ENDS: tuple[Patch, ...] = (
    *OLDER_DATABASE,
    (SessionLifecycle, "_refused", _NEVER),
    (SessionLifecycle, "_login", _refused_beside_an_older_database),
)


async def _whoever_asks(self: SessionLifecycle, stop: Any, asker: Any = None) -> None:
    del asker
    await _stop(self, stop)


ANYBODYS_STOP: tuple[Patch, ...] = ((SessionLifecycle, "stop", _whoever_asks),)


async def _look_nowhere(self: SessionLifecycle) -> None:
    del self


OUT_OF_SIGHT: tuple[Patch, ...] = ((SessionLifecycle, "_find_session", _look_nowhere),)
