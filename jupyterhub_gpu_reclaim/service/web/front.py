"""The front: the service's application, or one sentence that says why it is closed.

The service listens before it has read its settings or opened its journal, so that a
caller is told what keeps it from working. Until then every page and every call is
answered with 503; the program's sign of life (``healthz``) alone is not.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tornado.httputil import HTTPServerConnectionDelegate
from tornado.web import Application

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Route
from jupyterhub_gpu_reclaim.service.api.operators import Healthz
from jupyterhub_gpu_reclaim.service.web import pages
from jupyterhub_gpu_reclaim.service.web.site import log_request

if TYPE_CHECKING:
    from tornado.httputil import HTTPMessageDelegate

    from jupyterhub_gpu_reclaim.service.settings.environment import HubEnvironment


class Front(HTTPServerConnectionDelegate):
    """Passes requests to the application that is open now; for ``HTTPServer``."""

    def __init__(self, environment: HubEnvironment) -> None:
        #: What failure pages need of a context, and what they say.
        self._words = SimpleNamespace(
            reason=Reason.SERVICE_STARTING,
            facts={},
            templates=pages.templates(),
            prefix=environment.prefix,
            hub_prefix=environment.hub_prefix,
            hub_host=environment.hub_host,
            announcement=environment.announcement,
        )
        self._closed = _closed(self._words)
        self._application = self._closed

    def open(self, application: Application) -> None:
        self._application = application

    def close(self, reason: Reason, **facts: Any) -> None:
        self._words.reason, self._words.facts = reason, facts
        self._application = self._closed

    def start_request(
        self, server_conn: object, request_conn: Any
    ) -> HTTPMessageDelegate:
        return self._application.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """The applications do not need it."""


class _Closed(Route):
    async def prepare(self) -> None:
        words = self.settings["context"]
        self.set_header("Retry-After", "5")
        raise Unreachable(words.reason, **words.facts)


class _ClosedPage(_Closed, pages.HtmlErrors):
    pass


def _closed(words: SimpleNamespace) -> Application:
    base = re.escape(words.prefix)
    return Application(
        [
            (rf"{base}healthz", Healthz),
            (rf"{base}(readyz|metrics|api/.*)", _Closed),
            *((base + path, *what) for path, *what in pages.SCRIPTS),
            (r".*", _ClosedPage),
        ],
        context=words,
        log_function=log_request,
    )
