"""Calls for operators and their tools: health, metrics, second trees.

Health and the API's document are open to everyone with a connection to the service and
say nothing of sessions; metrics need a login unless the administrator opens them. The
rest is for managers.
"""

from __future__ import annotations

from typing import Any, ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common.auth.scopes import METRICS
from jupyterhub_gpu_reclaim.common.drain import HERE, DrainOrder, DrainReport
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import (
    Forbidden,
    ManagerRoute,
    PersonRoute,
    Route,
)
from jupyterhub_gpu_reclaim.service.api.openapi import operation


class Health(Value, frozen=True, kw_only=True):
    """The version of the program that answers."""

    version: str


class Healthz(Route):
    path: ClassVar = "healthz"

    @operation(
        "The program answers; at `readyz`, it has its settings, its journal, and has"
        " begun",
        caller="anyone",
        answer=Health,
        errors=(503,),
    )
    async def get(self) -> None:
        self.answer(Health(version=__version__))


class Readyz(Healthz):
    path: ClassVar = "readyz"


class Metrics(PersonRoute):
    path: ClassVar = "metrics"

    async def prepare(self) -> None:
        if self.context.metrics_open or self.is_preflight():
            return
        self.person = await self.identify(allowed_only=False)
        scrapes = self.hub_auth.check_scopes({METRICS}, self.current_user)
        if not (self.person.manages or scrapes):
            raise Forbidden(Reason.FORBIDDEN)

    @operation("Metrics in Prometheus's text format", answer=str, media="text/plain")
    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        await self.finish(generate_latest(self.context.registry))


class Document(Route):
    path: ClassVar = "api/openapi.json"

    @operation("This document", caller="anyone", answer=dict[str, Any])
    async def get(self) -> None:
        self.answer(self.settings["openapi"])


class ListNodes(ManagerRoute):
    path: ClassVar = "api/nodes"

    @operation(
        "How every node is: its agent, CRIU, cards, disks and the store's free room;"
        " for administrators",
        answer=list[NodeHealth],
    )
    async def get(self) -> None:
        self.answer(self.context.nodes())


class ListDrains(ManagerRoute):
    path: ClassVar = "api/drains"

    @operation(
        "How far each node is that is being drained; for administrators",
        answer=list[DrainReport],
    )
    async def get(self) -> None:
        self.answer(self.context.control.nodes.drains())


class DrainNode(ManagerRoute):
    """The drain of one node; ``-`` is the Hub's own machine."""

    path: ClassVar = "api/nodes/{node}/drain"

    @operation(
        "Suspend whatever runs on a node, and what comes there later; for"
        " administrators",
        body=DrainOrder,
        answer=DrainReport,
        status=202,
        errors=(400, 404),
    )
    async def post(self, node: str) -> None:
        name, by = "" if node == HERE else node, self.person.label
        if all(each.node != name for each in self.context.nodes()):
            raise NotFound(Reason.UNKNOWN_NODE, node=node)
        order = self.body(DrainOrder)
        self.answer(self.context.control.nodes.drain(name, order, by), 202)

    @operation(
        "Take the order to drain a node back; for administrators",
        status=204,
        errors=(404,),
    )
    async def delete(self, node: str) -> None:
        name = "" if node == HERE else node
        self.context.control.nodes.undrain(name, self.person.label)
        self.no_content()


ROUTES: tuple[type[Route], ...] = (
    Healthz,
    Readyz,
    Metrics,
    Document,
    ListNodes,
    ListDrains,
    DrainNode,
)
