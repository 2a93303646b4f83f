"""Which tests need root: they get the marker ``root``; ``-m "not root"`` leaves them.

A test that is skipped for whoever is not root tells so itself, in its fixtures or in a
``skipif``. The files of ``FILES`` try what an ordinary user may not do without asking.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType

import pytest

TESTS = Path(__file__).parents[1]
#: What a test or a fixture calls that skips where nobody is root.
ASKS = {"geteuid", "running_agent", "server_with_a_card", "pods", "tasks"}
#: Whole files, below ``tests``: some of their tests enter namespaces, trace processes,
#: make devices or give files away.
FILES = {
    "node/test_accelerator.py",
    "node/test_gpu_session.py",
    "node/test_rights.py",
    "node/test_thaw_server_last.py",
    "node/test_undo.py",
    "checkpoint/test_archive.py",
    "checkpoint/test_cycle.py",
    "checkpoint/test_faults.py",
    "checkpoint/test_other_user.py",
    "checkpoint/test_ports.py",
    "checkpoint/test_preflight.py",
    "checkpoint/test_quiesce.py",
    "checkpoint/test_sockets.py",
    "hostile/test_archives.py",
    "hostile/test_bystanders.py",
    "hostile/test_pages.py",
    "sampling/test_activity.py",
    "service/test_under_hub.py",
}
#: Folders whose tests are real sessions under a real Hub.
FOLDERS = {"browser", "e2e", "hub"}


@cache
def below_tests(file: Path) -> Path:
    """A test's file by its name below ``tests``; asked several times for each test."""
    return file.relative_to(TESTS)


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        if needs_root(item):
            item.add_marker("root")


def needs_root(item: pytest.Item) -> bool:
    path = below_tests(item.path)
    listed = path.parts[0] in FOLDERS or path.as_posix() in FILES
    reasons = [one.kwargs.get("reason", "") for one in item.iter_markers("skipif")]
    skipped = any("root" in reason for reason in reasons)
    return listed or skipped or any(ASKS & set(code.co_names) for code in _codes(item))


def _codes(item: pytest.Item) -> Iterator[CodeType]:
    functions = [getattr(item, "function", None)]
    fixtures = getattr(item, "_fixtureinfo", None)
    if fixtures is not None:
        found = fixtures.name2fixturedefs.values()
        functions += [one.func for some in found for one in some]
    for function in functions:
        if hasattr(function, "__code__"):
            yield function.__code__
