"""A refused start, as the Hub and the person at the page need it.

``start()`` raises it. The status is below 500: the Hub counts higher ones as its own
failures and may exit after some of them (trap T16). The page offers what a person can
do, and decides nothing for them.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from tornado import web

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.reasons import Reason

try:
    from jupyterhub.spawner import SpawnException
except ImportError:  # JupyterHub 5
    SpawnException = None

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.errors import ReclaimError

STATUS = 409
#: Reasons for which a person has to choose what is to come back.
ASKS = frozenset({Reason.SAVED_FOUND.value, Reason.SAVED_OLDER.value})
_Base: Any = SpawnException or web.HTTPError


class StartRefused(_Base):
    """The session was not resumed this time; its checkpoint is kept.

    Args:
        error: what went wrong, with its reason.
        spawn_url: the page that tries again.
        fresh_url: the service's page that sets the checkpoint aside; empty: there is
        none.
        kept_days: how long it is kept then.
    """

    def __init__(
        self, error: ReclaimError, *, spawn_url: str, fresh_url: str, kept_days: float
    ) -> None:
        message = error.message
        if error.reason.hint:
            message = f"{message} {error.reason.hint}"
        page = _page(message, error.reason.value, spawn_url, fresh_url, kept_days)
        if SpawnException is None:
            super().__init__(STATUS, message)
        else:
            super().__init__(
                message,
                reason=error.reason.value,
                log_message=str(error),
                message_html=page,
                status_code=STATUS,
            )
        #: For our templates: this is ours, and whether something is suspended.
        self.reclaim = "suspended" if fresh_url else "not suspended"
        self.jupyterhub_message = message
        self.jupyterhub_html_message = page


def _page(
    message: str, code: str, spawn_url: str, fresh_url: str, kept_days: float
) -> str:
    days = text.count(kept_days, "day")
    fresh = (
        f' <a class="btn btn-lg btn-secondary" id="gpu-reclaim-fresh"'
        f' href="{escape(fresh_url)}">Start fresh (your suspended session is kept'
        f" {days})</a>"
    )
    again = (
        f'<a class="btn btn-lg btn-primary" id="gpu-reclaim-again"'
        f' href="{escape(spawn_url)}">Try again</a>'
    )
    if code in ASKS and fresh_url:  # trying again is no answer
        again = (
            f'<a class="btn btn-lg btn-primary" id="gpu-reclaim-choose"'
            f' href="{escape(fresh_url)}">Choose what comes back</a>'
        )
        fresh_url = ""
    return (
        f'<span class="gpu-reclaim-reason" data-code="{escape(code)}">'
        f"{escape(message)}</span></p><p>{again}{fresh if fresh_url else ''}"
    )
