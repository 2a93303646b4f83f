"""``helm-values``: what the chart takes, and what its own program makes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator
from traitlets.config import Config

from jupyterhub_gpu_reclaim.service.app import ReclaimService
from jupyterhub_gpu_reclaim.service.clients.kubernetes import RULES
from tests.support.kustomized import built

ROOT = Path(__file__).parents[2]
CHART = Path(__file__).parent / "chart"
#: In the order in which Helm is given them.
OVERLAYS = {
    "minimal": ["minimal.yaml"],
    "full": ["full.yaml"],
    "kind": ["minimal.yaml", "kind.yaml"],
}
HOST = "10.244.0.9"


def merged(base, more):
    """As Helm does it: mappings are merged, all else is replaced."""
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return {**base, **{name: merged(base.get(name), more[name]) for name in more}}


def values(name):
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    for file in OVERLAYS[name]:
        more = yaml.safe_load((ROOT / "helm-values" / file).read_text())
        found = merged(found, more)
    return found


@pytest.fixture(params=OVERLAYS)
def overlay(request):
    return request.param


@pytest.fixture
def configured(overlay, tmp_path, monkeypatch):
    """The Hub's configuration, as the chart's own program makes it in the Hub's pod."""
    found = values(overlay)
    found["custom"]["gpuReclaim"]["state_dir"] = str(tmp_path / "state")
    for folder in ("secret", "config"):
        (tmp_path / folder).mkdir()
    (tmp_path / "secret" / "values.yaml").write_text(yaml.safe_dump(found))
    for name in ("hub.config.JupyterHub.cookie_secret", "hub.config.CryptKeeper.keys"):
        (tmp_path / "secret" / name).write_text("ab" * 32)
    for name in ("hub", "proxy-api", "user-scheduler", "priority"):
        (tmp_path / "config" / name).write_text(name)
        variable = name.upper().replace("-", "_") + "_SERVICE_PORT"
        monkeypatch.setenv(variable, "8000")
    for name in ("z2jh.py", "jupyterhub_config.py"):
        text = (CHART / f"{name}.txt").read_text()
        text = text.replace("/usr/local/etc/jupyterhub", str(tmp_path))
        # the Hub of these tests does without curl
        text = text.replace("AsyncHTTPClient.configure(", "str(")
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("HELM_RELEASE_NAME", "jupyterhub")
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (HOST, 0))]
    )
    c = Config()
    file = tmp_path / "jupyterhub_config.py"
    names = {"get_config": lambda: c, "__file__": str(file)}
    try:
        exec(compile(file.read_text(), str(file), "exec"), names)
    finally:
        sys.modules.pop("z2jh", None)
    return c


def test_the_chart_takes_them(overlay):
    schema = json.loads((CHART / "values.schema.json").read_text())
    errors = Draft7Validator(schema).iter_errors(values(overlay))
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


def test_the_chart_would_refuse_what_it_does_not_know():
    schema = json.loads((CHART / "values.schema.json").read_text())
    wrong = merged(values("minimal"), {"hub": {"extraVolume": []}})
    assert list(Draft7Validator(schema).iter_errors(wrong))


def test_the_chart_makes_a_hub_that_suspends(configured):
    assert configured.JupyterHub.spawner_class == "gpu-reclaim"
    assert configured.KubeSpawner.start_timeout == 600
    [service] = configured.JupyterHub.services
    assert service["name"] == "gpu-reclaim"
    assert service["url"] == f"http://{HOST}:10101"
    socket = service["environment"]["GPU_RECLAIM_SPAWNER_SOCKET"]
    assert configured.ReclaimMixin.reclaim_service == f"unix:{socket}"


def test_the_service_takes_its_arguments(configured):
    [service] = configured.JupyterHub.services
    app = ReclaimService()
    app.parse_command_line(json.loads(service["environment"]["GPU_RECLAIM_OPTIONS"]))
    assert app.placement == "kubernetes"
    assert app.agent_token_file == "/etc/gpu-reclaim/token"
    assert app.agent_ca_file == "/etc/gpu-reclaim/ca.crt"
    agents = [one for one in built() if one["kind"] == "DaemonSet"]
    assert app.agent_namespace == agents[0]["metadata"]["namespace"]
    assert app.agent_namespace != "jupyterhub"
    assert any(rule.scope == "agents" for rule in RULES)


def test_the_proxy_reaches_the_service(overlay):
    found = values(overlay)
    rule = found["hub"]["networkPolicy"]["ingress"][0]
    assert rule["ports"] == [{"port": 10101}]
    [source] = rule["from"]
    assert source["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/component": "proxy"
    }


def test_the_mounted_secret_is_the_one_that_is_made(overlay):
    found = values(overlay)
    [volume], [mount] = found["hub"]["extraVolumes"], found["hub"]["extraVolumeMounts"]
    made = (ROOT / "etc" / "kubernetes" / "make-secrets").read_text()
    assert f"secret {volume['secret']['secretName']} " in made
    # readable for the group that the chart gives to the Hub's volumes, for no other
    assert volume["secret"]["defaultMode"] == 0o440
    assert found["hub"]["podSecurityContext"]["fsGroup"] == 1000
    assert found["custom"]["gpuReclaim"]["agent_token_file"].startswith(
        mount["mountPath"]
    )


def test_no_program_stands_in_the_values_but_a_call_of_ours(overlay):
    [program] = values(overlay)["hub"]["extraConfig"].values()
    assert program.splitlines() == [
        "from z2jh import get_config",
        "from jupyterhub_gpu_reclaim.hub.config import configure",
        'configure(c, placement="kubernetes", **get_config("custom.gpuReclaim"))',
    ]


def test_no_culler_ends_what_is_to_be_saved(overlay):
    assert values(overlay)["cull"]["enabled"] is False
