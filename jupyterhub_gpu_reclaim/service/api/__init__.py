"""All routes of the API, as tornado rules and as an OpenAPI document.

The pages for people are separate: see ``web/site.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.service.api import (
    events,
    history,
    operators,
    people,
    spawner,
)
from jupyterhub_gpu_reclaim.service.api.openapi import document

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.service.api.base import Route

ROUTES: tuple[type[Route], ...] = (
    *people.ROUTES,
    *events.ROUTES,
    *spawner.ROUTES,
    *operators.ROUTES,
    *history.ROUTES,
)


def openapi(prefix: str) -> dict[str, Any]:
    """The document of all routes under that URL prefix."""
    return document(ROUTES, prefix=prefix, version=__version__)
