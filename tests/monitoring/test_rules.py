"""Alert rules and dashboard: they ask for metrics that there are, and fire as told."""

import functools
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jupyterhub_gpu_reclaim.common.drain import DrainOrder
from jupyterhub_gpu_reclaim.common.models import GpuSample, Phase, SessionKey, Step
from jupyterhub_gpu_reclaim.common.node_status import CardStatus, NodeHealth, NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.metrics import Totals
from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from jupyterhub_gpu_reclaim.service import metrics
from tests.support.checkpoints import checkpoint
from tests.support.manual_clock import ManualClock
from tests.support.ran import ran

ROOT = Path(__file__).parents[2]
RULES = {
    name: yaml.safe_load((ROOT / "etc/prometheus" / name).read_text())
    for name in ("rules.yml", "alerts.yml")
}
DASHBOARD = json.loads((ROOT / "etc/grafana/dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROGRAMS = {
    name: shutil.which(name, path=f"{ROOT / '.cache'}:/usr/local/bin:/usr/bin:/bin")
    for name in ("promtool", "prometheus")
}
PROMTOOL = PROGRAMS["promtool"]
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool: run scripts/bootstrap test"
)
ALERTS_TESTS = sorted(Path(__file__).parent.glob("*_test.yml"))
#: What Grafana puts in, as PromQL that can be checked.
VARIABLES = {"$job": ".*", "$__rate_interval": "5m", "$__range": "1h"}


@functools.cache
def exported() -> set[str]:
    """Names of all time series that the service has."""
    key = SessionKey("ada")
    sessions = Sessions(Journal("sqlite://"), ManualClock())
    step = Step(step="dump", title="", state="done", seconds=1.0)
    sessions.counters.step("suspend", step)
    info = checkpoint("c", key, gpus=[GpuSample(uuid="GPU-1")])
    row = SessionRow(key=key, phase=Phase.SUSPENDED, since=2e9, checkpoint=info.id)
    sessions.journal.save(row, None, [CheckpointRow(info=info)])
    sessions.drains.drain("", DrainOrder(), "root")
    sessions.sampled = 0.0
    card = CardStatus(name="NVIDIA A100")
    status = NodeStatus(
        host="gpu-1",
        version="1",
        cards=[card],
        state_free=1,
        store_free=1,
    )
    nodes = [NodeHealth(node="gpu-1", status=status, silent_since=1.0)]
    made = metrics.registry(Totals(sessions), lambda: nodes)
    return names_in(generate_latest(made).decode())


def names_in(text: str) -> set[str]:
    return {
        sample.name
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def rules() -> list[dict]:
    return [r for file in RULES.values() for g in file["groups"] for r in g["rules"]]


def expressions() -> list[tuple[str, str]]:
    asked = [(r.get("alert") or r["record"], r["expr"]) for r in rules()]
    for panel in PANELS:
        asked += [(panel["title"], target["expr"]) for target in panel["targets"]]
    return asked


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_that_is_asked_for_is_exported(where, expression):
    names = set(re.findall(r"\bjupyterhub_gpu_reclaim_\w+", expression))
    records = {rule["record"] for rule in rules() if "record" in rule}
    assert names <= exported()
    assert set(re.findall(r"\bgpu_reclaim:[\w:]+", expression)) <= records


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_reason_that_is_asked_for_is_one(where, expression):
    known = {reason.value for reason in Reason}
    for codes in re.findall(r'\bcode!?[=~]+"([^"]*)"', expression):
        assert set(codes.split("|")) <= known


def test_every_failure_begins_at_zero_so_that_an_alert_sees_the_first_one():
    sessions = Sessions(Journal("sqlite://"), ManualClock())
    made = generate_latest(metrics.registry(Totals(sessions))).decode()
    known = {
        sample.labels["code"]
        for family in text_string_to_metric_families(made)
        for sample in family.samples
        if sample.name == "jupyterhub_gpu_reclaim_operation_failures_total"
        and sample.labels["operation"] == "resume"
    }
    assert known == {reason.value for reason in Reason}


def test_every_metric_of_the_service_is_in_the_dashboard():
    shown = " ".join(expression for _, expression in expressions())
    for name in exported():
        family = re.sub(r"_(bucket|sum|count|created)$", "", name)
        assert family in shown, name


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert set(rule["annotations"]) == {"summary", "description"}
            for page in re.findall(r"docs/[\w/-]+\.md", str(rule["annotations"])):
                assert (ROOT / page).exists(), page


def test_every_alert_has_a_test():
    text = "".join(file.read_text() for file in ALERTS_TESTS)
    for rule in rules():
        if (name := rule.get("alert")) is not None:
            assert re.search(rf'"{name}"|alertname: {name}\n +exp_alerts', text), name


def test_panels_have_a_place_of_their_own_and_say_what_they_show():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)


@needs_promtool
def test_rules_and_dashboard_are_promql(tmp_path):
    queries = []
    for number, (_, expression) in enumerate(expressions()):
        plain = re.sub(r"\$\w+", lambda found: VARIABLES[found[0]], expression)
        queries.append({"record": f"query:number:{number}", "expr": plain})
    made = {"groups": [{"name": "dashboard", "rules": queries}]}
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump(made))
    files = [ROOT / "etc/prometheus" / name for name in RULES]
    _promtool("check", "rules", *files, tmp_path / "dashboard.yml")


@needs_promtool
def test_alerts_fire_for_what_they_say_and_for_nothing_else(tmp_path):
    for name in RULES:
        shutil.copy(ROOT / "etc/prometheus" / name, tmp_path)
    for file in ALERTS_TESTS:
        shutil.copy(file, tmp_path)
        _promtool("test", "rules", tmp_path / file.name)


def _promtool(*line: object) -> None:
    done = ran([str(PROMTOOL), *map(str, line)])
    assert done.returncode == 0, done.stdout + done.stderr
