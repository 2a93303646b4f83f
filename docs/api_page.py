"""The reference page of the service's API, made of its OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pieces import cell, page, table

from jupyterhub_gpu_reclaim.service.api import openapi

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLERS = {
    "person": "People and programs",
    "anyone": "Anybody",
    "spawner": "The spawner in the Hub's process",
}


def api() -> str:
    """Every call of the service's API, from its OpenAPI document."""
    document = openapi("/services/gpu-reclaim/")
    lines: list[str] = []
    for tag, title in CALLERS.items():
        lines += [f"## {title}", ""]
        for path, methods in document["paths"].items():
            for method, call in methods.items():
                if tag in call["tags"]:
                    lines += _call(method, path, call)
    lines += ["## Values", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", cell(schema.get("description", "")), ""]
        if "properties" in schema:
            lines += [*table(("field", "type"), *_fields(schema)), ""]
        else:
            lines += [f"One of `{'`, `'.join(schema.get('enum', []))}`", ""]
    about = """
Below `/services/gpu-reclaim/`, with a token of the Hub (`Authorization: token …`; a
user sees their own sessions, the Hub's administrators and holders of
`custom:gpu-reclaim:manage` all). The default server, which has no name, is `-` in a
path. Times are seconds since the epoch, durations seconds, sizes bytes. An error is a
`Failure` with its code and sentence. The same as an OpenAPI 3.1 document is served at
`api/openapi.json`. This page is generated from it.
"""
    return page("The service's API", about, *lines[:-1])


def _call(method: str, path: str, call: dict[str, Any]) -> list[str]:
    lines = [
        f"### `{method.upper()} {path.lstrip('/')}`",
        "",
        call["summary"] + ".",
        "",
    ]
    for one in call["parameters"]:
        if one["in"] == "query":
            kind = _type(one["schema"])
            lines.append(f"* `?{one['name']}=` ({kind}): {one['description']}")
    if "requestBody" in call:
        (media,) = call["requestBody"]["content"].values()
        lines.append(f"* body: {_type(media['schema'])}")
    for status, answer in call["responses"].items():
        if int(status) < 400:
            for kind, media in answer.get("content", {"": None}).items():
                what = f" {_type(media['schema'])}, `{kind}`" if media else " nothing"
                lines.append(f"* answer {status}:{what}")
    errors = [status for status in call["responses"] if int(status) >= 400]
    return [*lines, f"* errors: {', '.join(errors)}", ""]


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    needed = schema.get("required", [])
    for name, kind in schema["properties"].items():
        optional = "" if name in needed else f"; default `{kind.get('default')}`"
        yield f"`{name}`", _type(kind) + optional


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words, with links to the values on the page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        of = schema.get("items") or next(iter(schema.get("prefixItems", [{}])))
        return f"list of {_type(of)}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "anything"))
