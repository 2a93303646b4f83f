"""The real schemas of Kubernetes, for objects as they go over the wire."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
from kubernetes_asyncio.client import ApiClient, Configuration

#: The version of the cluster that the tests with a cluster run on.
VERSION = "1.36"


class _Serializer(ApiClient):
    """Only to turn objects into JSON: no session, no thread."""

    def __init__(self) -> None:
        self.configuration = Configuration()


@cache
def _serializer() -> ApiClient:
    return _Serializer()


def as_json(thing: Any) -> Any:
    """An object of the client as it is sent."""
    return _serializer().sanitize_for_serialization(thing)


def problems(thing: dict[str, Any]) -> list[str]:
    """What the schema has against it; unknown fields count."""
    try:
        kubernetes_validate.validate(thing, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{error.path}: {error.message}"]
    return []
