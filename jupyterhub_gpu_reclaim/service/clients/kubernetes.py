"""The few calls that the service makes to the API server of Kubernetes.

The only importer of ``kubernetes_asyncio`` in the service: KubeSpawner's own client, so
that a Hub has it. It keeps nothing and repeats nothing: no answer in time is
``Unreachable``, and so is one that says "too busy" or "too old" (410: list again).

What it may do is ``RULES`` in ``tests/support/cluster_rules.py``; the chart's roles are
tested against that table, and so are the calls.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from kubernetes_asyncio import client, config

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.pods import (
    ClusterNode,
    Pod,
    Pods,
    Refusal,
    WatchEvent,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

T = TypeVar("T")

#: Seconds for an answer.
LIMIT = 15.0
#: Pods in one piece of a list.
PAGE = 500
#: Seconds after which the server ends a watch; silence longer than that is a dead line.
WATCH_SECONDS = 30
_SLACK = 10.0
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
#: Seconds for what runs beside a session that has ended; Kubernetes' own is 30.
GRACE_SECONDS = 5


class Api:
    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._core = client.CoreV1Api(api)

    @classmethod
    async def open(cls, kubeconfig: str = "") -> Api:
        """Connect with the pod's own account, or with a kubeconfig.

        Raises:
            Refused: there is no account and no such file.
        """
        settings = client.Configuration()
        try:
            if kubeconfig:
                await config.load_kube_config(
                    config_file=kubeconfig, client_configuration=settings
                )
            else:
                config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            what = f"There is no access to the API server of Kubernetes: {error}."
            raise Refused(Reason.SETTING_INVALID, what=what) from None
        return cls(client.ApiClient(settings))

    async def close(self) -> None:
        await self._api.close()

    async def pods(self, namespace: str, selector: str) -> Pods:
        """List the pods as they are now (consistently), with the list's version."""
        found: list[Pod] = []
        more: dict[str, Any] = {}
        while True:
            listed = self._core.list_namespaced_pod(
                namespace,
                _preload_content=False,
                label_selector=selector,
                limit=PAGE,
                **more,
            )
            page = await self._answer("list", "pods", listed, Pods)
            found += page.items or ()
            if not page.metadata.continue_:
                return Pods(metadata=page.metadata, items=found)
            more = {"_continue": page.metadata.continue_}

    async def watch(
        self, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Pod]]:
        """Yield what happens to them, and how, after a version, until the watch ends.

        Raises:
            Unreachable: it broke, the line is dead, or that version is too old.
        """
        asked = self._core.list_namespaced_pod(
            namespace,
            _preload_content=False,
            label_selector=selector,
            resource_version=version,
            watch=True,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_SECONDS,
        )
        async with _translated_errors():
            async with asyncio.timeout(LIMIT):
                response: Any = await asked
            try:
                await _raise_refusal(response, "watch", "pods")
                while line := await _next_line(response):
                    event = _decode(line, WatchEvent)
                    if event.type == "ERROR":
                        refusal = _decode(event.object, Refusal)
                        raise _error(refusal.code, refusal.message)
                    yield event.type, _decode(event.object, Pod)
            finally:
                response.close()

    async def delete(self, pod: Pod) -> None:
        """Delete that very pod, whose session has ended; a missing one is fine.

        Never another pod of the same name. A container beside the session's that is
        deaf to SIGTERM keeps the pod's GPU no longer than our grace.
        """
        options = client.V1DeleteOptions(
            preconditions=client.V1Preconditions(uid=pod.uid),
            grace_period_seconds=GRACE_SECONDS,
        )
        deleted = self._core.delete_namespaced_pod(
            pod.metadata.name,
            pod.metadata.namespace,
            body=options,
            _preload_content=False,
        )
        try:
            await self._answer("delete", "pods", deleted, dict[str, Any])
        except NotFound:
            return
        except Refused as error:
            if error.reason is not Reason.OPERATION_IN_FLIGHT:
                raise

    async def node(self, name: str) -> ClusterNode:
        """The labels and state of a node; ``NotFound`` if there is none."""
        read = self._core.read_node(name, _preload_content=False)
        return await self._answer("get", "nodes", read, ClusterNode)

    # --- the border
    async def _answer(
        self, verb: str, resource: str, request: Awaitable[Any], kind: type[T]
    ) -> T:
        async with _translated_errors(), asyncio.timeout(LIMIT):
            response = await request
            try:
                await _raise_refusal(response, verb, resource)
                return _decode(await response.read(), kind)
            finally:
                response.release()


def own_namespace() -> str:
    """The namespace of the pod that this runs in; ``default`` outside of any."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


@asynccontextmanager
async def _translated_errors() -> AsyncIterator[None]:
    try:
        yield
    except TimeoutError:
        raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail="no answer") from None
    except (aiohttp.ClientError, OSError, client.ApiException) as error:
        detail = f"{type(error).__name__}: {error}"
        raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail=detail) from None


async def _next_line(response: Any) -> bytes:
    """The next line of a watch; empty at its end."""
    try:
        async with asyncio.timeout(WATCH_SECONDS + _SLACK):
            line: bytes = await response.content.readline()
    except (ValueError, HttpProcessingError):  # aiohttp's before 3.14, and since
        raise Unreachable(
            Reason.CLUSTER_UNREACHABLE, detail="a line is too long"
        ) from None
    return line


async def _raise_refusal(response: Any, verb: str, resource: str) -> None:
    if response.status < 400:
        return
    text = (await response.read())[:2000].decode(errors="replace")
    if response.status == 403:
        raise Unreachable(
            Reason.CLUSTER_FORBIDS, verb=verb, resource=resource, detail=text
        )
    raise _error(response.status, text)


def _error(status: int, text: str) -> Exception:
    detail = f"status {status}: {text}"
    if status == 404:
        return NotFound(Reason.UNKNOWN_SESSION, session="on that node", detail=detail)
    if status == 409:
        return Refused(Reason.OPERATION_IN_FLIGHT, operation="pod", detail=detail)
    return Unreachable(Reason.CLUSTER_UNREACHABLE, detail=detail)


def _decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return decoders.json_decoder(kind).decode(data)
    except msgspec.DecodeError as error:
        raise Unreachable(
            Reason.CLUSTER_UNREACHABLE, detail=f"not what was asked for: {error}"
        ) from None
