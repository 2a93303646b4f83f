"""Whatever tells of a session's GPUs: known, or missing, and never made up.

One suite for every source: NVIDIA's management library on the node, the DCGM exporter
through what Prometheus would answer, and through a real Prometheus.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.sampling.gpu import samples_of
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from jupyterhub_gpu_reclaim.service.dcgm.series import ExporterAnswer, Owner, query
from jupyterhub_gpu_reclaim.service.dcgm.source import Prometheus
from tests.support import dcgm, nvml
from tests.support.agent import wait_for

ROOT = Path(__file__).parents[2]
SERVER = shutil.which("prometheus", path=f"{ROOT / '.cache'}:/usr/local/bin:/usr/bin")


SCENES = {
    "idle": (nvml.Recorded, [nvml.IDLE_PID]),
    "busy": (nvml.Recorded, [nvml.BUSY_PID]),
    "two": (nvml.TwoCards, [nvml.BUSY_PID]),
    "mig": (nvml.Divided, [nvml.IDLE_PID, nvml.BUSY_PID]),
    "lost": (nvml.LostCard, [nvml.IDLE_PID]),
    "missing": (nvml.NotSupported, [nvml.IDLE_PID]),
    "shared": (nvml.Shared, [nvml.BUSY_PID]),
    "shared-idle": (nvml.SharedIdle, [nvml.BUSY_PID]),
    "none": (nvml.NoDriver, [nvml.BUSY_PID]),
}
#: How many cards Kubernetes has given the session's pod, where that is not one.
GIVEN = {"two": 2, "mig": 2, "lost": 2, "none": 0}


class OnTheNode:
    """NVIDIA's management library, as it was recorded."""

    #: Where there is no card, this one knows that.
    without = ()

    def see(self, scene: str):
        library, pids = SCENES[scene]
        return samples_of(Nvml(library(), driver=Path("/none")).measure(0), pids)


class FromOutside:
    """What the exporter shows, as Prometheus would answer."""

    #: A pod that has no card looks like one of which nothing is told.
    without = None

    def __init__(self, *, honored: bool) -> None:
        self.now = 1_700_000_000.0
        self.series = dcgm.series(dcgm.PAGE.read_text(), self.now, honored=honored)

    def see(self, scene: str):
        told = ExporterAnswer(self.series, dcgm.NAMES, self.now, 90)
        owner = Owner("jhub", f"jupyter-{scene}")
        return told.of(owner, GIVEN.get(scene, 1), self.now - 90)


class ThroughPrometheus(FromOutside):
    """The same page, scraped and kept by a real server."""

    def __init__(self, url: str) -> None:
        self.url = url
        wait_for(self.look)

    def look(self) -> bool:
        time.sleep(0.2)  # a scrape is due twice a second
        self.now = time.time()
        self.series = asyncio.run(self.ask())
        return len(self.series) > 20

    async def ask(self):
        one = Prometheus(self.url, seconds=20)
        try:
            return await one.query(query(60, 'job="dcgm"'), self.now)
        finally:
            one.close()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(dcgm.PAGE.read_bytes())

    def log_message(self, *words):
        """Nothing."""


@pytest.fixture(scope="module")
def exporter():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=partial(server.serve_forever, 0.05))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def prometheus(exporter, tmp_path_factory):
    """The address of a real server that scrapes it."""
    if SERVER is None:
        pytest.skip("no prometheus: run scripts/bootstrap test")
    folder = tmp_path_factory.mktemp("prometheus")
    labels = ", ".join(f"{name}: {value}" for name, value in dcgm.EXPORTER.items())
    (folder / "prometheus.yml").write_text(
        "scrape_configs:\n"
        "  - job_name: dcgm\n"
        "    scrape_interval: 500ms\n"
        "    scrape_timeout: 500ms\n"
        f"    static_configs: [{{targets: ['{exporter}'], labels: {{{labels}}}}}]\n"
    )
    line = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    )
    log = folder / "log"
    with log.open("w") as file:
        popen = subprocess.Popen(
            [SERVER, *line], stderr=file, env={**os.environ, "GOMAXPROCS": "1"}
        )
    try:
        listening = re.compile(r'"Listening on" address=(\S+)')
        found = wait_for(lambda: listening.search(log.read_text()))
        yield f"http://{found[1]}"
    finally:
        popen.kill()
        popen.wait()


@pytest.fixture(
    scope="module", params=["nvml", "dcgm", "dcgm honor_labels", "dcgm prometheus"]
)
def source(request):
    if request.param == "nvml":
        return OnTheNode()
    if request.param == "dcgm prometheus":
        return ThroughPrometheus(request.getfixturevalue("prometheus"))
    return FromOutside(honored="honor" in request.param)


def test_an_idle_card_is_known_to_do_nothing_and_its_memory_is_told(source):
    (card,) = source.see("idle")
    assert card.sm_percent == 0
    assert card.memory > 800 << 20
    assert card.name == "NVIDIA H200"
    assert len(card.uuid) == 32
    assert card.instance is None


def test_a_busy_card_is_told_in_percent_of_the_time(source):
    (card,) = source.see("busy")
    assert card.sm_percent == 86
    assert card.memory_percent == pytest.approx(21, abs=0.1)
    assert card.memory in (1050673152, 1002 << 20)


def test_several_cards_are_told_apart(source):
    first, second = source.see("two")
    assert first.uuid != second.uuid
    assert first.sm_percent == second.sm_percent == 86


def test_instances_of_a_divided_card_are_told_apart_and_the_busy_one_is_never_idle(
    source,
):
    first, second = source.see("mig")
    assert first.uuid == second.uuid
    assert (first.instance, second.instance) == (1, 2)
    assert first.memory < second.memory
    assert second.sm_percent is None or second.sm_percent > 40


def test_with_a_lost_card_nothing_is_known_of_any(source):
    assert source.see("lost") is None


def test_a_missing_value_is_missing_never_zero(source):
    (card,) = source.see("missing")
    assert card.sm_percent is card.memory is card.memory_percent is None


def test_who_works_on_a_shared_card_is_not_guessed(source):
    (card,) = source.see("shared")
    assert card.sm_percent is None


def test_on_a_shared_card_that_does_nothing_nobody_works(source):
    (card,) = source.see("shared-idle")
    assert card.sm_percent == 0


def test_a_session_without_a_card_is_not_given_one(source):
    found = source.see("none")
    assert (found if found is None else tuple(found)) == source.without
