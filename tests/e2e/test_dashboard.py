"""The dashboard and the rules, asked by a real Prometheus of a Hub that is at work.

Whether a metric exists is asked in ``tests/monitoring``; here, whether the labels meet,
so that each panel has something to show. What it looks like is drawn by
``benchmarks/dashboard_picture.py``.
"""

import time
from collections.abc import Iterator

import pytest
import requests

from demo import guests
from demo.admin import Admin
from tests.monitoring.test_rules import PANELS, PROGRAMS, expressions
from tests.support import light_server
from tests.support.prometheus import SCRAPE_SECONDS, asked, scraping
from tests.support.stack import Stack

PROMETHEUS = PROGRAMS["prometheus"]
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="no Prometheus: run scripts/bootstrap test"
)
#: Nothing has failed, and nothing is drained, so they are empty as they should be.
WELL = {"Failures by reason", "Drained nodes"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Its agent has simulated GPUs, so that there is something to count."""
    with Stack(
        tmp_path_factory.mktemp("stack"),
        idle_after=0,
        sample_interval=1,
        server=light_server.COMMAND,
        simulated_gpus=True,
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scraping(stack, tmp_path_factory.mktemp("prometheus"), str(PROMETHEUS)) as url:
        yield url


@pytest.mark.long
def test_every_panel_has_something_to_show_and_no_alert_fires(
    stack: Stack, prometheus: str
) -> None:
    guests.visit(stack, "alan")
    admin, until = Admin(stack), time.monotonic() + 60
    while not admin.session("alan")["gpus"] or not _up(prometheus):
        assert time.monotonic() < until
        time.sleep(0.2)
    admin.suspend("alan")
    admin.resume("alan")
    panels = {panel["title"] for panel in PANELS} - WELL
    while empty := {
        title
        for title, expression in expressions()
        if title in panels and not asked(prometheus, expression)
    }:
        assert time.monotonic() < until, empty
        time.sleep(SCRAPE_SECONDS)
    suspends = 'jupyterhub_gpu_reclaim_suspends_total{cause="request"}'
    assert [one["value"][1] for one in asked(prometheus, suspends)] == ["1"]
    for _, expression in expressions():
        asked(prometheus, expression)
    assert asked(prometheus, 'ALERTS{alertstate="firing"}') == []


def _up(prometheus: str) -> bool:
    try:
        return bool(asked(prometheus, "jupyterhub_gpu_reclaim_build_info"))
    except requests.ConnectionError:
        return False
