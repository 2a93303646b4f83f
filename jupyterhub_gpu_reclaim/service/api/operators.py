"""For operators and their tools: health, readiness, metrics, and the API's document.

Health and the document are open to everyone with a connection to the service and say
nothing of sessions; metrics need a login unless the administrator opens them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import operation


class Health(Value, frozen=True, kw_only=True):
    """The program answers."""

    version: str


class Healthz(Route):
    """Whether the program answers."""

    path: ClassVar = "healthz"

    @operation("The program answers", caller="anyone", answer=Health)
    async def get(self) -> None:
        """Answer that it does."""
        self.answer(Health(version=__version__))


class Readyz(Route):
    """Whether sessions are looked after."""

    path: ClassVar = "readyz"

    @operation(
        "The service works: it has its settings, its journal, and has begun",
        caller="anyone",
        answer=Health,
        errors=(503,),
    )
    async def get(self) -> None:
        """Answer that they are, or why not."""
        if not self.context.ready():
            raise Unreachable(Reason.SERVICE_STARTING)
        self.answer(Health(version=__version__))


class Metrics(PersonRoute):
    """Prometheus metrics."""

    path: ClassVar = "metrics"

    async def prepare(self) -> None:
        """Let managers and scrapers in, or everyone if the metrics are open."""
        if self.context.metrics_open or self.is_preflight():
            return
        self.person = await self.identify(allowed_only=False)
        if not (self.person.manages or self.person.scrapes):
            raise Forbidden(Reason.FORBIDDEN)

    @operation("Metrics in Prometheus's text format", answer=str, media="text/plain")
    async def get(self) -> None:
        """Collect them."""
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        await self.finish(generate_latest(self.context.registry))


class Document(Route):
    """The OpenAPI document."""

    path: ClassVar = "api/openapi.json"

    @operation("This document", caller="anyone", answer=dict[str, Any])
    async def get(self) -> None:
        """Send the document that was made at the start."""
        self.answer(self.settings["openapi"])


ROUTES: tuple[type[Route], ...] = (Healthz, Readyz, Metrics, Document)
