"""Keeps suspended sessions logged in through a restart of the Hub.

``JupyterHub.cleanup_oauth_clients`` deletes, at every start, the OAuth client of each
server that does not run, and so all browser logins of that server: it only keeps
clients of spawners that are in memory, and only running ones are loaded (trap T2 in
``docs/reference/jupyterhub-traps.md``). The wrapper loads the suspended ones first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub import orm
from jupyterhub.app import JupyterHub

from jupyterhub_gpu_reclaim.hub import patches
from jupyterhub_gpu_reclaim.hub.spawner.state import KEY, Pointer

if TYPE_CHECKING:
    from collections.abc import Callable


def apply(hub: type[Any] = JupyterHub) -> bool:
    return patches.wrap(
        hub,
        "cleanup_oauth_clients",
        ["self"],
        _keeping_suspended,
        "cleans up OAuth clients in a way we do not know; a restart of the Hub logs"
        " browsers out of suspended sessions",
    )


def _keeping_suspended(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def cleanup_oauth_clients(self: Any) -> None:
        load_suspended(self)
        original(self)

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
