"""The page that gives an open tab of a session its pass, inside a hidden frame.

Loaded by the JupyterLab extension (``ui/lab/static/service.js``). A frame's visit goes
through the Hub's login as any visit of a page, without a click; the pass is read from
the frame by the page around it. What stands in the way of other users' pages, which
have the same origin where a Hub has no subdomains: only a frame gets it (a script
cannot ask for it), only inside a page of that very server (the browser names it), and
only for the session of the visitor. That is as far as the Hub's own XSRF protection
reaches, which lies in the paths of cookies.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urlsplit

from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.service import passes
from jupyterhub_gpu_reclaim.service.pages import Page
from jupyterhub_gpu_reclaim.service.routes.base import Forbidden


class Tab(Page):
    """A pass for the tab that the frame is in."""

    async def prepare(self) -> None:
        """Frames of our own origin only; a missing login is led through the Hub's.

        Raises:
            Forbidden: a script asks, another site does, or a person looks at it.
        """
        told = self.request.headers
        into, of = told.get("Sec-Fetch-Dest"), told.get("Sec-Fetch-Site")
        if into not in (None, "iframe") or of not in (None, "same-origin"):
            raise Forbidden(Reason.FORBIDDEN)
        await super().prepare()

    async def get(self, user: str, server: str) -> None:
        """Give it.

        Raises:
            Forbidden: somebody else's session, or a page of another server.
        """
        key = SessionKey.of_path(user, server)
        mine = self.person.is_user and self.person.name == key.user
        if not (mine and self._is_around(key)):
            raise Forbidden(Reason.FORBIDDEN)
        self.set_header(
            "Content-Security-Policy", "default-src 'none'; frame-ancestors 'self'"
        )
        secret: bytes = self.settings["cookie_secret"]
        self.page("tab.html", tab_pass=passes.made(secret, key))

    def _is_around(self, key: SessionKey) -> bool:
        """Whether the page around the frame is one of that session's server."""
        page = urlsplit(self.request.headers.get("Referer", "")).path
        base = urlsplit(self.user_prefix).path + "user/"
        names = [unquote(part) for part in page.removeprefix(base).split("/")]
        wanted = [key.user, key.server] if key.server else [key.user]
        return page.startswith(base) and names[: len(wanted)] == wanted


def rules(prefix: str) -> list[tuple[Any, ...]]:
    """The tornado rules of this page under a URL prefix."""
    return [(rf"{re.escape(prefix)}tab/([^/]+)/([^/]+)", Tab)]
