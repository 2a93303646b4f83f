"""The service's HTTP side in one value: every route and page under one prefix.

It opens nothing and knows no settings beyond its context.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from tornado.web import Application

from jupyterhub_gpu_reclaim.service.api import ROUTES, openapi
from jupyterhub_gpu_reclaim.service.api.base import NothingHere
from jupyterhub_gpu_reclaim.service.api.openapi import pattern
from jupyterhub_gpu_reclaim.service.api.visits import PageLogins
from jupyterhub_gpu_reclaim.service.web import forms, manager, pages

if TYPE_CHECKING:
    from tornado.web import RequestHandler

    from jupyterhub_gpu_reclaim.service.api.context import Context

log = logging.getLogger(__name__)

#: Largest request body that is read, in bytes; the calls of ours need a few hundred.
MAX_BODY = 64 * 1024


def application(context: Context, *, cookie_secret: bytes) -> Application:
    base = re.escape(context.prefix)
    shown: list[Any] = [*pages.ROUTES, *forms.ROUTES, *manager.ROUTES]
    return Application(
        [
            *((base + pattern(route.path), route) for route in ROUTES),
            (rf"{base}api/.*", NothingHere),
            *((base + path, *page) for path, *page in shown),
            (r".*", pages.NoPage),
        ],
        context=context,
        openapi=openapi(context.prefix),
        cookie_secret=cookie_secret,
        page_logins=PageLogins(cookie_secret, context.clock),
        log_function=log_request,
        # a cookie alone changes nothing (api/visits.py), and a token needs no more
        xsrf_cookies=False,
    )


def log_request(handler: RequestHandler) -> None:
    """Log a request in a line, without its query, which may hold a login's code."""
    status = handler.get_status()
    level = logging.WARNING if status >= 500 else logging.DEBUG
    log.log(
        level,
        "%s %s %d in %.0f ms",
        handler.request.method,
        handler.request.path,
        status,
        1000 * handler.request.request_time(),
    )
