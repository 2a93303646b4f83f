"""Standby: answers while the service cannot work (yet), and says why.

The service listens from its first second on, so that the Hub finds it; which of two
applications answers is decided here, request by request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tornado.httputil import HTTPServerConnectionDelegate
from tornado.web import Application

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Route
from jupyterhub_gpu_reclaim.service.api.operators import Health
from jupyterhub_gpu_reclaim.service.web import pages
from jupyterhub_gpu_reclaim.service.web.site import log_request

if TYPE_CHECKING:
    from tornado.httputil import HTTPMessageDelegate

    from jupyterhub_gpu_reclaim.common.models import Failure
    from jupyterhub_gpu_reclaim.service.settings.environment import HubEnvironment


class Standby(HTTPServerConnectionDelegate):
    """Passes requests to the current application; for ``HTTPServer``."""

    def __init__(self, environment: HubEnvironment) -> None:
        self._words = _Words(environment)
        self._standby = _application(self._words)
        self.application = self._standby

    def wait(self, why: Reason) -> None:
        """Let nothing work from now on, and tell every caller why."""
        self._words.why = why
        self.application = self._standby

    def start_request(
        self, server_conn: object, request_conn: Any
    ) -> HTTPMessageDelegate:
        """Pass the request to the current application."""
        return self.application.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Do nothing: the applications do not need it."""


class _Waits(Route):
    """Any call of a program, or the spawner, while the service waits."""

    async def prepare(self) -> None:
        """Answer with the reason."""
        raise Unreachable(self.settings["context"].why)


class _Alive(Route):
    """The program's sign of life; ``readyz`` says whether it may work."""

    def get(self) -> None:
        """Answer with the program's version."""
        self.answer(Health(version=__version__))


class _Page(pages.HtmlErrors):
    """Any page while the service waits."""

    async def prepare(self) -> None:
        """Answer with a page that shows the reason."""
        self.set_header("Retry-After", "5")
        raise Unreachable(self.settings["context"].why)

    def write_failure(self, failure: Failure) -> None:
        """Our own page gets status 200: the Hub ends itself at an error there."""
        if self.request.path == self.settings["context"].prefix:
            self.set_status(200)
        super().write_failure(failure)


class _Words:
    """The part of a context that failure pages need."""

    def __init__(self, environment: HubEnvironment) -> None:
        self.why = Reason.SERVICE_STARTING
        self.templates = pages.templates()
        self.prefix = environment.prefix
        self.hub_prefix = environment.hub_prefix
        self.hub_host = environment.hub_host
        self.message_url = ""


def _application(words: _Words) -> Application:
    """The application of a service that waits."""
    base = re.escape(words.prefix)
    return Application(
        [
            (rf"{base}healthz", _Alive),
            (rf"{base}(readyz|metrics|api/.*)", _Waits),
            (base + pages.STATIC_PATH, pages.Static, pages.STATIC_FILES),
            (r".*", _Page),
        ],
        context=words,
        log_function=log_request,
    )
