"""What the tests of several files have in common, begun once: a stack, a browser.

A Hub with its proxy, service and agent takes five seconds of processor to start and to
end. The files of a group run one after the other in one process (``scheduler.py``), and
what they ask for with the same settings is the same one. It ends with the last of them.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from tests.support.root import below_tests

#: In this order.
GROUPS = (
    (
        "e2e/test_cycle.py",
        "e2e/test_drain.py",
        "e2e/test_nap.py",
        "e2e/test_newer_files.py",
    ),
    (
        "browser/test_admin.py",
        "browser/test_first_key.py",
        "browser/test_pages.py",
        "browser/test_tab.py",
    ),
)
_ORDER = [file for group in GROUPS for file in group]
_NUMBERS = {file: number for number, group in enumerate(GROUPS) for file in group}


def turn_of(item: pytest.Item) -> int:
    """Where a test's file stands in the groups, or one after the last."""
    file = below_tests(item.path).as_posix()
    return _ORDER.index(file) if file in _ORDER else len(_ORDER)


def scope_of(nodeid: str) -> str:
    """What runs together: the tests of a group, or else of a file."""
    file = nodeid.partition("::")[0]
    number = _NUMBERS.get(file.removeprefix("tests/"))
    return file if number is None else f"group {number}"


class Shared:
    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._ends = ExitStack()

    def get(self, begin: Callable[..., AbstractContextManager[Any]], **settings: Any):
        key = f"{begin.__qualname__} {sorted(settings.items())}"
        if key not in self._made:
            self._made[key] = self._ends.enter_context(begin(**settings))
        return self._made[key]

    def end(self) -> None:
        self._made.clear()
        self._ends.close()


SHARED = Shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """End what is shared where the next test has no part in it."""
    try:
        return (yield)
    finally:
        if nextitem is None or scope(item) != scope(nextitem):
            SHARED.end()


def scope(item: pytest.Item) -> str:
    return scope_of(below_tests(item.path).as_posix())
