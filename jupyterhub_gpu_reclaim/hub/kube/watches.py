"""Restarts KubeSpawner's watches, which end for good without telling.

A watch gives up when the API server has been away for a minute; its list is frozen from
then on. It is started again in place: the last list stays until there is a new one, so
that no pod seems to be gone meanwhile. All spawners share one attempt at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from kubespawner.reflector import ResourceReflector

#: Seconds between two attempts; KubeSpawner logs each that fails.
RETRY_SECONDS = 5.0
#: Seconds that a start, a poll or a stop waits for the watch to go on.
WAIT_SECONDS = 5.0

_attempts: WeakKeyDictionary[ResourceReflector, asyncio.Task[None]]
_attempts = WeakKeyDictionary()


def has_ended(watch: ResourceReflector | None) -> bool:
    """Whether it has given up, so that its list is frozen."""
    task = watch.watch_task if watch is not None else None
    return task is not None and task.done()


def renew(watch: ResourceReflector) -> asyncio.Task[None] | None:
    """Have a watch that has ended started again, until that succeeds.

    Returns:
        The task that does so; None: the watch is fine.
    """
    if not has_ended(watch):
        return None
    attempt = _attempts.get(watch)
    if attempt is None or attempt.done():
        attempt = _attempts[watch] = asyncio.create_task(_begin_again(watch))
    return attempt


async def renewed(watch: ResourceReflector) -> None:
    """Wait until a watch works.

    Raises:
        Unreachable: the API server does not answer (yet); it is asked again.
    """
    attempt = renew(watch)
    if attempt is None:
        return
    await asyncio.wait({attempt}, timeout=WAIT_SECONDS)
    if has_ended(watch):
        detail = f"the watch of {watch.kind} has ended"
        raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail=detail)


async def _begin_again(watch: ResourceReflector) -> None:
    while True:
        try:
            await watch.start()  # lists first
        except Exception:  # noqa: BLE001 - whatever it was, KubeSpawner has logged it
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
