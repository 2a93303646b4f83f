"""Which columns of a session's row end with its processes, and which with the session.

A row outlives its processes: they end and others are started, under the same name. What
was said of the old ones, above all an order to suspend, must not hit the new ones.
Pure; applied at every change of a row.

============================  =========================================================
belongs to                    columns, and why
============================  =========================================================
the processes (incarnation)   ``intent``: the person who asked saw these processes.
                              ``attempt``: a capture of them. ``failures``,
                              ``backoff_until``: what hindered *them*. ``stop_asked``:
                              the Hub was asked to stop them; a stop of others is a
                              person's.
the session: processes and    ``kept_until``, ``kept_by``: "leave my work alone" means
those restored from them      the work, which a suspend by hand and a return do not
                              end. ``gpus``, ``gpu_name``: what it needs to come back.
the server's name             ``opted_out_by``: an administrator means the server,
                              whatever runs in it. ``generation``: only ever grows.
============================  =========================================================

All of it ends when the server is deleted or its name goes to another user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import Intent

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow

_NO_ORDER: dict[str, Any] = {"intent": Intent.NONE, "intent_by": ""}
_OF_PROCESSES: dict[str, Any] = {
    **_NO_ORDER,
    "attempt": "",
    "failures": 0,
    "backoff_until": None,
    "stop_asked": None,
}
_OF_A_SESSION: dict[str, Any] = {
    **_OF_PROCESSES,
    "kept_until": None,
    "kept_by": "",
    "gpus": 0,
    "gpu_name": "",
}


def ended(before: SessionRow, after: SessionRow) -> dict[str, Any]:
    """The columns that end, each with its empty value.

    Args:
        before: the row as it was.
        after: with its new phase, incarnation and checkpoint.
    """
    same = after.incarnation == before.incarnation
    came_from = bool(after.checkpoint) and after.checkpoint == before.checkpoint
    if after.phase is Phase.STOPPED or not (same or came_from):
        return _OF_A_SESSION
    if not same:
        return _OF_PROCESSES
    return _NO_ORDER if _is_done(after) else {}


def _is_done(row: SessionRow) -> bool:
    """Whether what was asked for is so already, or cannot be any more."""
    if row.intent is Intent.RESUME:
        return row.phase in LIVE
    return row.phase in {Phase.SUSPENDED, Phase.RESUMING}
