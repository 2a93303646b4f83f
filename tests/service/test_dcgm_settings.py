"""The settings of the second source of GPU use: what makes no sense is told at once."""

from pathlib import Path

import pytest
from traitlets import TraitError
from traitlets.config import Config

from jupyterhub_gpu_reclaim.common.clock import ManualClock
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.service.app import ReclaimService
from jupyterhub_gpu_reclaim.service.dcgm.settings import DcgmSource
from jupyterhub_gpu_reclaim.service.settings.placement import agent_of

URL = "http://prometheus-server.monitoring:9090"


async def test_nobody_is_asked_unless_it_is_set():
    assert DcgmSource().open(ManualClock()) is None
    opened = DcgmSource(url=f"{URL}/prefix").open(ManualClock())
    assert opened is not None
    await opened.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "prometheus:9090"),
        ("url", "ftp://host"),
        ("url", "http://"),
        ("url", "http://host:99999"),
        ("url", "http://host/?query=up"),
        ("url", "http://host/a b"),
        ("first", "nvml"),
        ("scrape_interval", 0),
        ("scrape_interval", float("inf")),
        ("time_limit", 0),
        ("labels", []),
        ("labels", ["pod"]),
        ("labels", ['namespace/pod"']),
        ("selector", "cluster"),
        ("selector", 'cluster="one"} or up{a="b"'),
        ("selector", 'cluster="one",'),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_the_start(name, value):
    with pytest.raises(TraitError) as told:
        DcgmSource(**{name: value})
    assert name in str(told.value)
    assert "9090" not in str(told.value).replace("http://host:9090", "")


@pytest.mark.parametrize("selector", ['cluster="a\\"b"', 'job=~"dcgm|gpu",env!="test"'])
def test_matchers_as_promql_has_them_are_taken(selector):
    assert DcgmSource(selector=selector).selector == selector


def test_certificates_that_cannot_be_read_are_refused(tmp_path):
    junk = tmp_path / "ca.crt"
    junk.write_text("no certificate")
    for file in (junk, tmp_path / "none"):
        source = DcgmSource(url="https://prometheus", ca_file=str(file))
        with pytest.raises(Refused, match=r"DcgmSource\.ca_file .* cannot be used"):
            source.open(ManualClock())


async def test_it_is_refused_where_sessions_are_no_pods():
    service = ReclaimService(config=Config(DcgmSource={"url": URL}))
    with pytest.raises(Refused, match="is for sessions in pods"):
        await agent_of(service, Path("/none"), None)
