"""The API as data: what each call takes and answers, as an OpenAPI 3.1 document.

The routes describe themselves with :func:`operation` and a ``path``; the application
makes its tornado rules and this document of the same classes, so a route cannot be
missing in the document. Schemas are those that ``msgspec`` decodes with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from jupyterhub_gpu_reclaim.common.models import Failure

F = TypeVar("F", bound=Callable[..., Any])

METHODS = ("get", "post", "put", "patch", "delete")
_REF = "#/components/schemas/{name}"
_FIELD = re.compile(r"\{(\w+)\}")

#: Caller → the name of its security scheme, and what may go wrong.
_CALLERS: dict[str, tuple[list[dict[str, list[str]]], tuple[int, ...]]] = {
    "person": ([{"hubToken": []}, {"pageProof": []}], (400, 401, 403, 429, 503)),
    "spawner": ([], (400, 404, 503)),
    "anyone": ([], (400,)),
}

_SECURITY_SCHEMES = {
    "hubToken": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "`token <token of the Hub>`, or `Bearer <token of the Hub>`.",
    },
    "pageProof": {
        "type": "apiKey",
        "in": "header",
        "name": "X-XSRFToken",
        "description": "The proof in a page of the service, which a browser"
        " opens with the Hub's login; a cookie opens no call.",
    },
}

_FIELDS = {
    "user": "Name of the session's user.",
    "server": (
        "Name of the server; `-` is the default server, and a name of dashes alone"
        " gets one more of them."
    ),
    "node": "Name of a node; `-` is the Hub's own machine.",
}


@dataclass(frozen=True)
class Query:
    name: str
    kind: Any
    about: str


@dataclass(frozen=True)
class ApiOperation:
    """What one method of a route takes and answers."""

    summary: str
    answer: Any = None  #: type of its JSON; None: it has no body
    status: int = 200
    body: Any = None  #: type of the request's JSON; None: none is read
    errors: tuple[int, ...] = ()  #: beyond those that every caller may meet
    caller: str = "person"  #: or spawner, or anyone
    media: str = "application/json"
    query: tuple[Query, ...] = ()


def operation(summary: str, **details: Any) -> Callable[[F], F]:
    """Describe a route's method; the details are those of :class:`ApiOperation`."""

    def mark(method: F) -> F:
        method.operation = ApiOperation(summary, **details)  # type: ignore[attr-defined]
        return method

    return mark


def operations(route: type) -> dict[str, ApiOperation]:
    found = {
        name: getattr(getattr(route, name, None), "operation", None) for name in METHODS
    }
    return {name: one for name, one in found.items() if one is not None}


def pattern(path: str) -> str:
    """A path such as ``api/sessions/{user}`` as the end of a regular expression."""
    return _FIELD.sub(r"([^/]+)", path.replace(".", r"\."))


def document(routes: Iterable[Any], *, prefix: str, version: str) -> dict[str, Any]:
    routes = list(routes)
    described = [one for route in routes for one in operations(route).values()]
    asked = [each.kind for one in described for each in one.query]
    bodies = [kind for one in described for kind in (one.answer, one.body)]
    kinds = dict.fromkeys(kind for kind in [Failure, *bodies, *asked] if kind)
    made, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = dict(zip(kinds, made, strict=True))
    paths = {
        f"/{route.path}": {
            method: _operation_object(method, route.path, one, schemas)
            for method, one in operations(route).items()
        }
        for route in routes
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jupyterhub-gpu-reclaim",
            "version": version,
            "summary": "Suspended and running sessions of a JupyterHub.",
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "servers": [{"url": prefix.rstrip("/") or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def _operation_object(
    method: str, path: str, one: ApiOperation, schemas: dict[Any, Any]
) -> dict[str, Any]:
    security, usual = _CALLERS[one.caller]
    answer: dict[str, Any] = {"description": HTTPStatus(one.status).phrase}
    if one.answer is not None:
        answer["content"] = {one.media: {"schema": schemas[one.answer]}}
    responses = {str(one.status): answer}
    for status in sorted({*usual, *one.errors}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": schemas[Failure]}},
        }
    made: dict[str, Any] = {
        "operationId": method + re.sub(r"\W+", "_", f"_{path}").rstrip("_"),
        "summary": one.summary,
        "tags": [one.caller],
        "security": security,
        "parameters": _parameters(path, one, schemas),
        "responses": responses,
    }
    if one.body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[one.body]}},
        }
    return made


def _parameters(
    path: str, one: ApiOperation, schemas: dict[Any, Any]
) -> list[dict[str, Any]]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _FIELDS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in _FIELD.findall(path)
    ]
    in_query = [
        {
            "name": query.name,
            "in": "query",
            "description": query.about,
            "schema": schemas[query.kind],
        }
        for query in one.query
    ]
    return in_path + in_query
