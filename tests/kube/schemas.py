"""The real schemas of Kubernetes, for objects as they go over the wire."""

import os
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

#: That of the cluster which the tests with a cluster run on, if no other is asked for.
VERSION = os.environ.get("GPU_RECLAIM_KUBERNETES_VERSION", "1.36.0")
FOLDER = f"kubernetes-json-schema/v{VERSION}-local-strict"


class _Serializer(ApiClient):
    """Only to turn objects into JSON: no session, no thread."""

    def __init__(self) -> None:
        self.configuration = Configuration()


@cache
def _serializer() -> ApiClient:
    return _Serializer()


def as_json(thing: Any) -> Any:
    return _serializer().sanitize_for_serialization(thing)


@cache
def _definitions() -> Registry:
    known = schema_contents(f"{FOLDER}/_definitions.json", VERSION)
    return Resource.from_contents(known) @ Registry()


@cache
def _validator(kind: str, version: str) -> Draft202012Validator:
    """As ``kubernetes_validate.validate`` makes it, anew for every object."""
    group, _, number = version.rpartition("/")
    words = [kind.lower(), *filter(None, [group.partition(".")[0]]), number]
    schema = schema_contents(f"{FOLDER}/{'-'.join(words)}.json", VERSION)
    registry = Resource.from_contents(schema) @ _definitions()
    return Draft202012Validator(schema, registry=registry)


def problems(thing: dict[str, Any]) -> list[str]:
    """What the schema has against it; unknown fields count."""
    errors = _validator(thing["kind"], thing["apiVersion"]).iter_errors(thing)
    return [f"{error.json_path}: {error.message}" for error in errors]
