"""The API server's HTTP for the cluster's double: lists, watches, creations, ends."""

from __future__ import annotations

import asyncio
import copy
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from tests.kube.schemas import problems

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

KINDS = {
    "pods": "Pod",
    "events": "Event",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "nodes": "Node",
    "secrets": "Secret",
}


def application(cluster: Cluster) -> Application:
    bound = {"cluster": cluster}
    kinds = "|".join(KINDS)
    return Application(
        [
            (rf"/api/v1/namespaces/([^/]+)/({kinds})", _Many, bound),
            (rf"/api/v1/namespaces/([^/]+)/({kinds})/([^/]+)", _One, bound),
            (r"/api/v1/()(nodes)/([^/]+)", _One, bound),
        ]
    )


class _Handler(RequestHandler):
    def initialize(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def note(self, verb: str, resource: str, namespace: str) -> None:
        cluster = self.cluster
        who = self.request.headers.get("Authorization", "").split()[-1:]
        cluster.calls.append((*who, verb, f"{resource}@{namespace}"))  # type: ignore[arg-type]
        if (verb, resource) in cluster.forbidden:
            raise HTTPError(403)
        if cluster.throttled:
            cluster.throttled -= 1
            self.set_header("Retry-After", "0")
            raise HTTPError(429)
        if cluster.down:
            cluster.down -= 1
            raise HTTPError(503)

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None))[1]
        self.set_header("Content-Type", "application/json")
        reason = getattr(error, "reason", None) or ""
        self.finish(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": reason or f"status {status_code}",
                "reason": reason,
                "code": status_code,
            }
        )


class _Many(_Handler):
    async def get(self, namespace: str, resource: str) -> None:
        watch = self.get_query_argument("watch", "") in {"true", "True", "1"}
        self.note("watch" if watch else "list", resource, namespace)
        wanted = _selector(self.get_query_argument("labelSelector", ""))

        def mine(thing: dict[str, Any]) -> bool:
            metadata = thing["metadata"]
            return metadata.get("namespace", "") == namespace and _matches(
                metadata.get("labels") or {}, wanted
            )

        if watch:
            await self._watch(resource, mine)
            return
        things = [t for t in self.cluster.objects[resource].values() if mine(t)]
        start = int(self.get_query_argument("continue", "0"))
        limit = int(self.get_query_argument("limit", "0")) or len(things) or 1
        rest = str(start + limit) if start + limit < len(things) else ""
        self.finish(
            {
                "kind": f"{KINDS[resource]}List",
                "apiVersion": "v1",
                "metadata": {
                    "resourceVersion": str(self.cluster.version),
                    **({"continue": rest} if rest else {}),
                },
                "items": things[start : start + limit],
            }
        )

    async def _watch(self, resource: str, mine: Any) -> None:
        cluster = self.cluster
        seen = int(self.get_query_argument("resourceVersion", "0") or 0)
        limit = float(self.get_query_argument("timeoutSeconds", "30"))
        until = asyncio.get_running_loop().time() + limit
        self.set_header("Content-Type", "application/json")
        with suppress(StreamClosedError):
            await self.flush()
            while True:
                news = cluster.news
                if seen + 1 < cluster.oldest:
                    await self._send("ERROR", _too_old(seen))
                    return
                for version, kind, of, thing in cluster.history:
                    if version > seen and of == resource and mine(thing):
                        await self._send(kind, thing)
                if seen != cluster.version and self.get_query_argument(
                    "allowWatchBookmarks", ""
                ):
                    await self._send("BOOKMARK", _bookmark(cluster.version))
                seen = cluster.version
                if cluster.cuts:
                    cluster.cuts -= 1
                    self.write('{"type": "MODI')
                    await self.flush()
                    self.request.connection.stream.close()  # type: ignore[attr-defined]
                    return
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), left)

    async def _send(self, kind: str, thing: dict[str, Any]) -> None:
        self.write(json.dumps({"type": kind, "object": thing}) + "\n")
        await self.flush()

    def post(self, namespace: str, resource: str) -> None:
        self.note("create", resource, namespace)
        cluster, thing = self.cluster, json.loads(self.request.body)
        thing["metadata"].setdefault("namespace", namespace)
        known = (namespace, thing["metadata"]["name"]) in cluster.objects[resource]
        if cluster.refusal and resource == "pods":
            raise HTTPError(403, reason=cluster.refusal)
        if known:
            raise HTTPError(409, reason="AlreadyExists")
        wrong = problems({"apiVersion": "v1", "kind": KINDS[resource], **thing})
        if wrong:
            cluster.violations += wrong
            raise HTTPError(422, reason="Invalid")
        if resource == "pods":
            thing["status"] = {"phase": "Pending"}
            _admit(thing["spec"])
        cluster.put(resource, thing)
        if resource == "pods":
            cluster.schedule(copy.deepcopy(thing))
        self.set_status(201)
        self.finish(thing)


class _One(_Handler):
    def _found(self, verb: str, where: tuple[str, str, str]) -> dict[str, Any]:
        namespace, resource, name = where
        self.note(verb, resource, namespace)
        thing = self.cluster.objects[resource].get((namespace, name))
        if thing is None:
            raise HTTPError(404, reason="NotFound")
        return thing

    def get(self, *where: str) -> None:
        self.finish(self._found("get", where))  # type: ignore[arg-type]

    def put(self, *where: str) -> None:
        self._found("update", where)  # type: ignore[arg-type]
        thing = json.loads(self.request.body)
        self.cluster.violations += problems(thing)
        self.cluster.put(where[1], thing)
        self.finish(thing)

    def delete(self, *where: str) -> None:
        thing = self._found("delete", where)  # type: ignore[arg-type]
        options = json.loads(self.request.body or b"{}") or {}
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != thing["metadata"]["uid"]:
            raise HTTPError(409, reason="Conflict")
        grace = options.get("gracePeriodSeconds")
        grace = self.get_query_argument("gracePeriodSeconds", grace)
        if where[1] == "pods":
            self.cluster.delete_pod(thing, 30 if grace is None else int(grace))
        else:
            self.cluster.drop(where[1], thing)
        self.finish(thing)


def _admit(spec: dict[str, Any]) -> None:
    """As the plugin ``DefaultTolerationSeconds`` does, which is on by default."""
    given = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(each.get("key", "") in {"", key} for each in given):
            found = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            given.append({**found, "tolerationSeconds": 300})


def _selector(text: str) -> dict[str, str | None]:
    """``a=b,c``: a must be b, c must be there."""
    wanted: dict[str, str | None] = {}
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        wanted[name] = value if equals else wanted.get(name)
    return wanted


def _matches(labels: dict[str, str], wanted: dict[str, str | None]) -> bool:
    return all(
        name in labels and value in {None, labels[name]}
        for name, value in wanted.items()
    )


def _bookmark(version: int) -> dict[str, Any]:
    """An empty object, as Go writes it."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        "spec": {"containers": None},
        "status": {},
    }


def _too_old(version: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"too old resource version: {version}",
        "reason": "Expired",
        "code": 410,
    }
