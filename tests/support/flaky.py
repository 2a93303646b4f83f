"""The tests that get a second chance: each with what was seen, and no more than a few.

A test gets in here when it has failed for no fault that could be found, and leaves it
when the fault is found. Only one that starts programs can be here: a test that is pure
either fails or does not. All others are run once.
"""

from typing import Final

import pytest

#: Name of the test, without its parameters → what was seen.
FLAKY: Final = {
    "tests/browser/test_first_key.py::"
    "test_notebook_in_a_tab_that_nobody_looks_at_gets_its_old_kernel": (
        "no output within 30 s, once, beside a profiler and three other files;"
        " passed 8 times at a load of 20 and with 0.4 of a core"
    ),
    "tests/e2e/test_cycle.py::"
    "test_visit_in_the_middle_of_a_suspend_ends_in_a_running_session": (
        "ran out of time, once, at a load of 16"
    ),
    "tests/hostile/test_address.py::test_port_is_never_free_while_the_hub_lives": (
        "ran out of time, once, at a load of 10"
    ),
}
#: How many there may be.
MOST: Final = 6
#: Where tests start programs.
PROGRAMS: Final = ("browser", "e2e", "hostile", "hub", "kube", "node", "checkpoint")


def mark(items: list[pytest.Item]) -> None:
    """Give each of them its second chance."""
    for item in items:
        if item.nodeid.partition("[")[0] in FLAKY:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
