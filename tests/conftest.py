"""Tests with a browser or a whole Hub on a busy machine get a second chance.

What they wait for has limits in seconds of wall clock, and three files run at a time on
two cores. A test that needs the second chance is reported as such ("rerun"), and one
that fails twice fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

WITH_A_WHOLE_HUB = {"browser", "e2e", "hub", "service"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in WITH_A_WHOLE_HUB:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))
