"""Keeps what suspended sessions need of the Hub: their logins, and their users.

``JupyterHub.cleanup_oauth_clients`` deletes, at every start, the OAuth client of each
server that does not run, and so all browser logins of that server: it only keeps
clients of spawners that are in memory, and only running ones are loaded (trap T2 in
``docs/reference/jupyterhub-traps.md``). The wrapper loads the suspended ones first.

A culler of users (``jupyterhub-idle-culler --cull-users``) deletes those who have not
come for a while, which is just when a session is suspended (trap T17): it is told that
this user is still needed. If another program deletes one, what is suspended is kept for
a while; a person who does so on the Hub's page deletes it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub import orm
from jupyterhub.apihandlers.users import UserAPIHandler
from jupyterhub.app import JupyterHub
from tornado import web

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub import patches
from jupyterhub_gpu_reclaim.hub.spawner.state import KEY, Pointer

if TYPE_CHECKING:
    from collections.abc import Callable


_DELETES = ("delete:users", "admin:users")


def apply(hub: type[Any] = JupyterHub, users: type[Any] = UserAPIHandler) -> bool:
    """Wrap the methods; returns whether both are in place afterwards."""
    logins = patches.wrap(
        hub,
        "cleanup_oauth_clients",
        ["self"],
        _keeping_suspended,
        "cleans up OAuth clients in a way we do not know; a restart of the Hub logs"
        " browsers out of suspended sessions",
    )
    spared = patches.wrap(
        users,
        "delete",
        ["self", "user_name"],
        _sparing_who_is_away,
        "deletes users in a way we do not know; a program that does so deletes what"
        " they have suspended",
    )
    return logins and spared


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
        if _is_saved(spawner):
            hub.users[spawner.user].spawners[spawner.name]
            loaded += 1
    return loaded


def _is_saved(row: orm.Spawner) -> bool:
    return Pointer.from_state((row.state or {}).get(KEY)).precious


def _sparing_who_is_away(original: Callable[..., Any]) -> Callable[..., Any]:
    async def delete(self: Any, user_name: str) -> Any:
        asker = patches.asker(self)
        if asker is not None:
            asker = asker._replace(deletes_user=True)
            scopes = self.expanded_scopes  # those who may not delete are told nothing
            if asker.culler and any(s.startswith(_DELETES) for s in scopes):
                _check_nothing_is_saved(self.find_user(user_name))
        token = patches.ASKER.set(asker)
        try:
            return await original(self, user_name)
        finally:
            patches.ASKER.reset(token)

    return delete


def _check_nothing_is_saved(user: Any) -> None:
    """Keep a user whose sessions are suspended.

    Raises:
        HTTPError: 409, which a culler writes into its log.
    """
    if user is None:
        return
    saved = [row.name for row in user.orm_user.orm_spawners.values() if _is_saved(row)]
    if saved:
        reason = Reason.USER_SUSPENDED
        raise web.HTTPError(409, f"{reason.sentence(user=user.name)} {reason.hint}")
