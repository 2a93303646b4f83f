"""Has jupyterhub-idle-culler ask us before it ends a server.

For the culler's own configuration file (version 2 or later); see
``docs/how-to/cullers.md``::

    from jupyterhub_gpu_reclaim.hub.culler_hook import asking

    c.IdleCuller.cull_arbiter_hook = asking("http://127.0.0.1:10101")

It then ends only what we cannot save: servers that we do not know, and sessions whose
last suspend has failed. Without an answer, nothing is ended.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from traitlets.log import get_logger

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.auth.scopes import SERVICE_NAME
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.http.client import Connection
from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey, SessionView
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

#: Seconds to wait for an answer.
_LIMIT = 10.0


def asking(
    service: str, *, prefix: str = f"/services/{SERVICE_NAME}/"
) -> Callable[..., Awaitable[bool]]:
    """Make a ``cull_arbiter_hook`` that asks our service.

    Args:
        service: its address, as in ``configure(c)``: ``http://127.0.0.1:10101``.
        prefix: its path, where the Hub has a ``base_url`` of its own.
    """
    connection = Connection(
        service.rstrip("/") + prefix,
        lambda: {"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
        Reason.SERVICE_UNREACHABLE,
    )

    async def hook(
        inactive: timedelta | None,
        inactive_limit: float,
        server: dict[str, Any],
        **_more: Any,
    ) -> bool:
        if inactive is None or inactive.total_seconds() < inactive_limit:
            return False
        return await _may_end(connection, _key(server))

    return hook


def _key(server: dict[str, Any]) -> SessionKey:
    # Newer versions of JupyterHub give the full name, older ones only a URL.
    name = str(server.get("name") or "")
    if "full_name" in server:
        return SessionKey(str(server["full_name"]).partition("/")[0], name)
    path = str(server["url"]).partition("/user/")[2]
    return SessionKey(unquote(path.partition("/")[0]), name)


async def _may_end(connection: Connection, key: SessionKey) -> bool:
    """Whether the service does not know the server, or could not save it."""
    try:
        path = f"/api/sessions/{key.path}"
        answer = await connection.ask("GET", path, limit=_LIMIT)
        if answer.status == 404:
            return True
        if answer.status >= 400:
            raise answer.refusal() or connection.unanswered(answer.status)
        view = codec.decode(answer.body, SessionView)
    except ReclaimError as error:
        get_logger().warning("gpu-reclaim: %s is left alone: %s", key, error)
        return False
    return view.phase is Phase.RUNNING and view.failure is not None
