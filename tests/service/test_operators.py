"""Health and metrics: who may see them, and what they say from the start."""

from dataclasses import replace

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from jupyterhub_gpu_reclaim.common.models import (
    Finding,
    GpuSample,
    Nap,
    Phase,
    SessionKey,
    Step,
    Tree,
    TreeState,
)
from jupyterhub_gpu_reclaim.common.node_status import CardStatus, NodeHealth, NodeStatus
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.metrics import PREFIX, Totals
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    Keeping,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from jupyterhub_gpu_reclaim.service import metrics
from tests.support.checkpoints import checkpoint
from tests.support.manual_clock import ManualClock

KEY = SessionKey("ada")


@pytest.fixture
def sessions():
    return Sessions(Journal("sqlite://"), ManualClock())


def samples(sessions: Sessions, *nodes: NodeHealth) -> dict[tuple, float]:
    made = metrics.registry(Totals(sessions), lambda: nodes)
    text = generate_latest(made).decode()
    return {
        (
            one.name.removeprefix(PREFIX),
            *(one.labels[name] for name in sorted(one.labels)),
        ): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def test_health_is_told_to_anyone(service):
    response = await service.call("healthz", "")
    assert response.code == 200


@pytest.mark.parametrize(
    ("token", "status"),
    [("", 401), ("token-ada", 403), ("token-root", 200), ("token-prometheus", 200)],
)
async def test_metrics_need_a_login_that_may_see_them(service, token, status):
    assert (await service.call("metrics", token)).code == status


async def test_metrics_that_are_open_need_no_login(service):
    opened = replace(service.context, metrics_open=True)
    service.app.settings["context"] = opened
    response = await service.call("metrics", "")
    assert response.code == 200
    assert response.headers["Content-Type"].startswith("text/plain")


def test_metrics_of_a_new_service_have_every_phase_and_outcome(sessions):
    found = samples(sessions)
    for phase in Phase:
        assert found["sessions", phase.value] == 0
    assert found["operations_total", "suspend", "failed"] == 0
    assert found["operations_total", "nap", "failed"] == 0
    assert found["operation_failures_total", "nap_failed", "nap"] == 0
    assert found["napping_gpu_memory_bytes",] == 0
    assert found["operation_failures_total", "timed_out", "resume"] == 0
    assert not [name for name in found if name[0] == "sample_age_seconds"]
    assert found["operation_failures_total", "gpu_memory", "resume"] == 0
    for cause in ("idle", "pressure", "request"):
        assert found["suspends_total", cause] == 0
    assert found["wait_duration_seconds_count",] == 0
    assert found["gpu_seconds_reclaimed_total",] == 0


def test_metrics_show_what_was_counted(sessions):
    counters = sessions.counters
    counters.operations.labels("suspend", "ok").inc(3)
    counters.failures.labels("resume", "port_in_use").inc()
    for seconds in (0.2, 7.0):
        step = Step(step="dump", title="", state="done", seconds=seconds)
        counters.step("suspend", step)
    for seconds in (45.0, 2000.0):
        counters.waits.observe(seconds)
    found = samples(sessions)
    assert found["operations_total", "suspend", "ok"] == 3
    assert found["operation_failures_total", "port_in_use", "resume"] == 1
    assert found["wait_duration_seconds_bucket", "60.0"] == 1
    assert found["wait_duration_seconds_bucket", "3600.0"] == 2
    buckets = {
        key[1]: value
        for key, value in found.items()
        if key[0] == "step_duration_seconds_bucket" and key[3] == "dump"
    }
    assert (buckets["0.25"], buckets["5.0"], buckets["+Inf"]) == (1, 1, 2)
    assert found["step_duration_seconds_sum", "suspend", "dump"] == 7.2


def test_metrics_show_what_sessions_hold_and_have_left(sessions):
    """A suspended one on a node that is being drained, and one that naps."""
    gpu = GpuSample(uuid="GPU-1", name="T4")
    info = checkpoint("c", KEY, gpus=[gpu], logical_bytes=12, stored_bytes=9)
    row = SessionRow(key=KEY, phase=Phase.SUSPENDED, since=2e9, checkpoint=info.id)
    row = msgspec.structs.replace(row, node="gpu-1")
    kept = CheckpointRow(info=info, keeping=Keeping.CURRENT)
    sessions.journal.save(row, None, [kept])
    sessions.drains.drain("gpu-1", DrainOrder(), "root")
    naps = SessionKey("bob")
    sessions.journal.save(SessionRow(key=naps, phase=Phase.NAPPING))
    tree = Tree(incarnation="i", key=naps, state=TreeState.NAPPING, init_pid=1)
    tree = msgspec.structs.replace(
        tree, nap=Nap(begun=1.0, gpus=[GpuSample(uuid="x", memory=7)])
    )
    sessions.runtime(naps).napping = tree
    found = samples(sessions)
    assert found["gpus", "T4", "gpu-1", "freed"] == 1
    assert found["checkpoints_stored_bytes",] == 9
    assert found["drained_sessions", "gpu-1", "saved"] == 1
    assert found["napping_gpu_memory_bytes",] == 7


def test_metrics_of_nodes_tell_of_agents_cards_and_disks(sessions):
    cards = [CardStatus(name="A100"), CardStatus(name="A100"), CardStatus(name="T4")]
    one = NodeStatus(host="1", version="1", cards=cards, state_free=5, store_free=7)
    cannot = Finding(code="criu_missing", message="No CRIU.", fatal=True)
    other = NodeStatus(host="2", version="1", findings=[cannot])
    found = samples(
        sessions,
        NodeHealth(node="gpu-1", status=one),
        NodeHealth(node="gpu-2", status=other),
        NodeHealth(node="gpu-3", status=one, silent_since=1.0),
        NodeHealth(node="gpu-4"),
        NodeHealth(node="gpu-5", status=NodeStatus(host="5", version="1")),
    )
    states = {state: found["agents", state] for state in ("ready", "unready", "silent")}
    assert states == {"ready": 1, "unready": 2, "silent": 2}  # full is not ready
    assert found["gpus_present", "A100", "gpu-1"] == 2
    assert found["gpus_present", "T4", "gpu-1"] == 1
    assert found["store_free_bytes", "gpu-1"] == 7
    faults = {key[1:] for key in found if key[0] == "node_faults"}
    silent = "The machine's agent does not answer."
    assert faults == {
        ("criu_missing", "gpu-2", "No CRIU."),
        (
            "store_full",
            "gpu-1",
            "Not enough room in the store: more needed, 7 B free.",
        ),
        ("agent_unreachable", "gpu-3", silent),
    }
    assert ("store_free_bytes", "gpu-2") not in found


def test_metrics_of_whole_operations_count_those_that_succeeded(sessions):
    sessions.counters.whole.labels("resume").observe(4.0)
    sessions.counters.still.observe(0.2)
    found = samples(sessions)
    assert found["operation_duration_seconds_bucket", "5.0", "resume"] == 1
    assert found["operation_duration_seconds_bucket", "2.5", "resume"] == 0
    assert found["operation_duration_seconds_count", "suspend"] == 0
    assert found["session_frozen_seconds_sum",] == 0.2
