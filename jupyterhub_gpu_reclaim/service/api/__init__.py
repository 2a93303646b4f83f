"""All routes of the API, as tornado rules and as an OpenAPI document.

``people`` has the calls about sessions, ``spawner`` those of the Hub's process,
``operators`` health, metrics and nodes, and ``events`` the stream of changes.

A user sees and steers their own sessions, a manager all; ``visits`` says which login
counts. Every error is JSON with a code and a sentence, never a traceback (law 7).

Read next: ``base`` and ``people``, then ``docs/reference/api.md``. The pages for people
are separate: see ``web/site.py``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.service.api import events, operators, people, spawner
from jupyterhub_gpu_reclaim.service.api.openapi import document

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.service.api.base import Route

ROUTES: tuple[type[Route], ...] = (
    *people.ROUTES,
    *events.ROUTES,
    *spawner.ROUTES,
    *operators.ROUTES,
)


@functools.cache
def openapi(prefix: str) -> dict[str, Any]:
    return document(ROUTES, prefix=prefix, version=__version__)
