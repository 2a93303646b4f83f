"""One repair of JupyterHub itself: a restart must not log suspended sessions out.

Applied once, when the mixin is imported in a Hub. ``JupyterHub.cleanup_oauth_clients``
deletes, at every start, the OAuth client of each server that does not run, and with it
all browser logins of that server: it only keeps clients of spawners that are in memory,
and only running ones are loaded (trap T2 in ``docs/reference/jupyterhub-traps.md``).
The wrapper loads the spawners of suspended servers first; the Hub's own code does the
rest. Nothing else of JupyterHub is ever changed.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any

from jupyterhub import orm
from jupyterhub.app import JupyterHub

from jupyterhub_gpu_reclaim.spawner.state import KEY, Pointer

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "_gpu_reclaim_wrapped"


def apply(hub: type[Any] = JupyterHub) -> bool:
    """Wrap the Hub's clean-up; returns whether it is in place afterwards.

    A Hub whose method is not the one we know (no such method, other arguments) is
    left alone, with a warning: then people log in again after a restart, no more.
    """
    original = getattr(hub, "cleanup_oauth_clients", None)
    if getattr(original, _MARK, False):
        return True
    if original is None or list(inspect.signature(original).parameters) != ["self"]:
        logging.getLogger("JupyterHub").warning(
            "gpu-reclaim: this JupyterHub cleans up OAuth clients in a way we do not"
            " know; a restart of the Hub logs browsers out of suspended sessions"
        )
        return False
    hub.cleanup_oauth_clients = _keeping_suspended(original)
    return True


def _keeping_suspended(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def cleanup_oauth_clients(self: Any) -> None:
        load_suspended(self)
        original(self)

    setattr(cleanup_oauth_clients, _MARK, True)
    return cleanup_oauth_clients


def load_suspended(hub: Any) -> int:
    """Bring the spawners of suspended servers into memory; returns how many."""
    loaded = 0
    stopped = hub.db.query(orm.Spawner).filter(
        orm.Spawner.server == None,  # noqa: E711 - SQL
        orm.Spawner.oauth_client != None,  # noqa: E711 - SQL
    )
    for spawner in stopped:
        if Pointer.from_state((spawner.state or {}).get(KEY)).precious:
            hub.users[spawner.user].spawners[spawner.name]
            loaded += 1
    return loaded
