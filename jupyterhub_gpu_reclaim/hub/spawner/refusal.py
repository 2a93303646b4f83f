"""A refused start, as the Hub and the person at the page need it.

``start()`` raises it. The status is below 500: the Hub counts higher ones as its own
failures and may exit after some of them (trap T16). The page offers what a person can
do, and decides nothing for them.
"""

from __future__ import annotations

from html import escape
from typing import Any

from tornado import web

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.reasons import ASKS, Reason, plainly

try:
    from jupyterhub.spawner import SpawnException
except ImportError:  # JupyterHub 5
    SpawnException = None

STATUS = 409
_Base: Any = SpawnException or web.HTTPError


def reason_of(error: Exception, seconds: float) -> ReclaimError:
    """Translate an error that the Hub or its configuration has raised.

    Words that were written for a person are passed on. Others are for the Hub's log,
    which has them: they may hold a secret. The seconds that it took are for the
    sentence about a limit of the Hub.
    """
    if isinstance(error, ReclaimError):
        return error
    if isinstance(error, TimeoutError) and seconds:
        return Refused(Reason.TIMED_OUT, step="resume", seconds=seconds)
    if isinstance(error, web.HTTPError) and error.status_code < 500:
        why = str(getattr(error, "message", "") or _words_of(error))
        return Refused(Reason.START_DENIED, why=why.strip())
    return Refused(Reason.START_FAILED, what=type(error).__name__)


def _words_of(error: web.HTTPError) -> str:
    words = str(error.log_message or error.reason or "")
    try:
        return words % error.args if error.args else words
    except (TypeError, ValueError):
        return words


class StartRefused(_Base):
    """The session was not resumed this time; its checkpoint is kept.

    ``spawn_url`` is the page that tries again, ``fresh_url`` the service's page that
    sets the checkpoint aside; empty if there is none.
    """

    def __init__(
        self,
        error: ReclaimError,
        *,
        spawn_url: str,
        fresh_url: str,
    ) -> None:
        message = error.message
        if error.reason.hint:
            message = f"{message} {error.reason.hint}"
        words, details = _words(error)
        page = words + _choices(error, spawn_url, fresh_url) + details
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
        #: Mark for our templates: this is ours, and whether something is suspended.
        self.reclaim = "suspended" if fresh_url else "not suspended"
        self.jupyterhub_message = message
        self.jupyterhub_html_message = page


def _words(error: ReclaimError) -> tuple[str, str]:
    """The words for the user, and the rest for the administrator whom they ask."""
    code = escape(error.reason.value)
    message, hint = escape(error.message), escape(error.reason.hint)
    details = f"<code>{code}</code>"
    if plain := plainly(error.reason, retryable=error.retryable):
        details += f": {message} {hint}"
        message, hint = plain, ""
    words = (
        f'<span class="gpu-reclaim-reason" data-code="{code}">{message}'
        f"{f' {hint}' if hint else ''}</span></p><p>"
    )
    return words, (
        '</p><details class="gpu-reclaim-details"><summary>Details for your'
        f" administrator</summary><p>{details}</p></details><p>"
    )


def _choices(error: ReclaimError, spawn_url: str, fresh_url: str) -> str:
    if error.reason in ASKS and fresh_url:  # trying again does not help
        return (
            f'<a class="btn btn-lg btn-primary" id="gpu-reclaim-choose"'
            f' href="{escape(fresh_url)}">Choose what comes back</a>'
        )
    # by itself, while somebody looks at the page (gpu_reclaim_refused_script.html)
    by_itself = ' data-by-itself="yes"' if error.retryable else ""
    again = (
        f'<a class="btn btn-lg btn-primary" id="gpu-reclaim-again"{by_itself}'
        f' href="{escape(spawn_url)}">Try again</a>'
    )
    if not fresh_url:
        return again
    return (
        f'{again}</p><p><a id="gpu-reclaim-fresh" href="{escape(fresh_url)}">'
        "Start fresh (your suspended session is set aside)</a>"
    )
