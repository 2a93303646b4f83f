"""The dashboard and the rules, asked by a real Prometheus of a Hub that is at work.

Whether a metric exists is asked in ``tests/monitoring``; here, whether the labels meet,
so that each panel has something to show. Grafana itself is on no registry that a test
could take it from.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
import yaml

from demo import guests
from demo.admin import Admin
from demo.stack import free_port
from tests.monitoring.test_rules import PANELS, PROGRAMS, ROOT, RULES, expressions
from tests.support import light_server
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMETHEUS = PROGRAMS["prometheus"]
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="no Prometheus: run scripts/bootstrap test"
)
SCRAPE_SECONDS = 1
#: Nothing has failed, so it is empty as it should be.
WELL = {"Failures by reason"}


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
    """The address of one that scrapes the stack as ``docs/how-to/operate.md`` says."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "token").write_text(Admin(stack).headers["Authorization"].split()[1])
    scrape = {
        "job_name": "gpu-reclaim",
        "metrics_path": "/services/gpu-reclaim/metrics",
        "authorization": {"credentials_file": str(folder / "token")},
        "static_configs": [{"targets": [stack.url.partition("//")[2]]}],
    }
    settings = {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(ROOT / "etc/prometheus" / name) for name in RULES],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with Path(folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def asked(prometheus: str, expression: str) -> list[dict]:
    """What it answers to an expression of the dashboard, a rule or an alert."""
    values = {"$job": "gpu-reclaim", "$__rate_interval": "30s", "$__range": "1h"}
    plain = re.sub(r"\$\w+", lambda found: values[found[0]], expression)
    answer = requests.get(
        f"{prometheus}/api/v1/query", params={"query": plain}, timeout=20
    )
    assert answer.ok, (expression, answer.text)
    return answer.json()["data"]["result"]


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
    """Whether it has scraped the service."""
    try:
        return bool(asked(prometheus, "jupyterhub_gpu_reclaim_build_info"))
    except requests.ConnectionError:
        return False
