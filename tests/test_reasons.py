"""Each sentence for a person gets, wherever it is said, the facts that it names."""

import ast
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import jupyterhub_gpu_reclaim
from jupyterhub_gpu_reclaim.common.reasons import Reason

PACKAGE = Path(jupyterhub_gpu_reclaim.__file__).parent
#: Format specifications that take numbers alone.
NUMBERS = "bdeEfFgGn%"
#: Functions that take a reason, and the facts that they add to it.
ADDED = {
    "found": {"pid", "name"},
    "refusal": {"pid", "name"},
    "refused": {"path", "why", "what"},
    "failure": {"why"},
    "SharingFound": {"pid", "name", "others"},
}


def fields(reason: Reason) -> dict[str, str]:
    parts = string.Formatter().parse(reason.template)
    return {name: spec or "" for _, name, spec, _ in parts if name}


def reason_of(node: ast.AST) -> Reason | None:
    match node:
        case ast.Attribute(value=ast.Name(id="Reason")):
            return Reason.__members__.get(node.attr)
    return None


@cache
def sources() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}


def said(tree: ast.AST) -> list[tuple[Reason, ast.Call]]:
    """Calls that are given a reason first, or ask it for its sentence."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        reason = reason_of(node.args[0]) if node.args else None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "sentence":
            reason = reason_of(node.func.value)
        # What asks whether a failure has that reason gives it no facts.
        if reason is not None and not ast.unparse(node.func).endswith(".tells"):
            found.append((reason, node))
    return found


def places() -> Iterator[tuple[str, Reason, ast.Call]]:
    for file, tree in sources().items():
        where = file.relative_to(PACKAGE)
        for reason, call in said(tree):
            yield f"{where}:{call.lineno}", reason, call


def is_text(node: ast.AST) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return constant or isinstance(node, ast.JoinedStr)


def mistakes(reason: Reason, call: ast.Call) -> Iterator[str]:
    given = {each.arg: each.value for each in call.keywords}
    wanted = fields(reason)
    if None not in given:  # **facts
        added = ADDED.get(ast.unparse(call.func).rpartition(".")[2], set())
        yield from (f"lacks {name}" for name in wanted.keys() - given.keys() - added)
    for name, spec in wanted.items():
        if spec and spec[-1] in NUMBERS and name in given and is_text(given[name]):
            yield f"{name} is a number"


def test_sentences_get_their_facts() -> None:
    found = list(places())
    assert len(found) > 200
    wrong = [
        f"{where}: {reason.value} {what}"
        for where, reason, call in found
        for what in mistakes(reason, call)
    ]
    assert wrong == []


def test_mistakes_are_found() -> None:
    told = ast.parse('Refused(Reason.GPU_BUSY, percent="many")', mode="eval")
    assert isinstance(told.body, ast.Call)
    assert "percent is a number" in list(mistakes(Reason.GPU_BUSY, told.body))


@pytest.mark.parametrize("reason", Reason)
def test_sentence_can_be_said(reason: Reason) -> None:
    facts = {
        name: 1.5 if spec and spec[-1] in NUMBERS else "x"
        for name, spec in fields(reason).items()
    }
    told = reason.sentence(**facts)
    assert "{" not in told
    assert reason.sentence()  # without any it still says what is known


def test_every_reason_is_said_somewhere() -> None:
    nodes = (node for tree in sources().values() for node in ast.walk(tree))
    said_somewhere = {reason_of(node) for node in nodes}
    assert set(Reason) <= said_somewhere
