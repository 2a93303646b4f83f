"""What our chart's notes and ``helm-values`` tell Zero to JupyterHub.

Its schema takes them, and its own program makes a Hub of them that suspends sessions.
"""

import json
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator
from kubespawner import KubeSpawner
from traitlets.config import Config

from jupyterhub_gpu_reclaim.service.app import ReclaimService
from tests.kube.schemas import as_json
from tests.kubernetes_manifests.test_pod_security import is_restricted
from tests.support import helm
from tests.support.cluster_rules import RULES
from tests.support.helm import LEAST, ROOT, merged

pytestmark = helm.needed

CHART = Path(__file__).parent / "chart"
#: On top of the notes, in the order in which Helm is given them.
OVERLAYS = {
    "notes": [],
    "full": ["full.yaml"],
    "kind": ["kind.yaml"],
    "restricted": ["restricted.yaml"],
}
HOST = "10.244.0.9"


def values(name):
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    monitored = merged(LEAST, {"monitoring": {"podMonitor": name == "full"}})
    found = merged(found, helm.hub_values(monitored))
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
    kept = ["hub.config.JupyterHub.cookie_secret", "hub.config.CryptKeeper.keys"]
    kept += [f"hub.services.{name}.apiToken" for name in found["hub"]["services"]]
    for name in kept:
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
    wrong = merged(values("notes"), {"hub": {"extraVolume": []}})
    assert list(Draft7Validator(schema).iter_errors(wrong))


def ours(configured):
    [service] = [
        one for one in configured.JupyterHub.services if one["name"] == "gpu-reclaim"
    ]
    return service


def test_the_chart_makes_a_hub_that_suspends(configured):
    assert configured.JupyterHub.spawner_class == "gpu-reclaim"
    assert configured.KubeSpawner.start_timeout == 600
    service = ours(configured)
    assert service["url"] == f"http://{HOST}:10101"
    socket = service["environment"]["GPU_RECLAIM_SPAWNER_SOCKET"]
    assert configured.ReclaimMixin.reclaim_service == f"unix:{socket}"


def test_the_service_takes_its_arguments(configured):
    service = ours(configured)
    app = ReclaimService()
    app.parse_command_line(json.loads(service["environment"]["GPU_RECLAIM_OPTIONS"]))
    assert app.placement == "kubernetes"
    assert app.agent_token_file == "/etc/gpu-reclaim/token"
    assert app.agent_ca_file == "/etc/gpu-reclaim/ca.crt"
    agents = helm.one_of(helm.rendered(), "DaemonSet")
    assert app.agent_namespace == agents["metadata"]["namespace"]
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


def test_the_token_is_readable_for_the_hub_and_no_other(overlay):
    found = values(overlay)
    [secret] = [one for one in found["hub"]["extraVolumes"] if "secret" in one]
    # for the group that the chart gives to the Hub's volumes
    assert secret["secret"]["defaultMode"] == 0o440
    assert found["hub"]["podSecurityContext"]["fsGroup"] == 1000
    [path] = [
        mount["mountPath"]
        for mount in found["hub"]["extraVolumeMounts"]
        if mount["name"] == secret["name"]
    ]
    token = found["custom"]["gpuReclaim"]["agent_token_file"]
    assert Path(token).is_relative_to(path)


def test_the_hubs_packages_are_where_its_python_looks(overlay):
    hub = values(overlay)["hub"]
    [first] = hub["initContainers"]
    [mount] = first["volumeMounts"]
    assert first["command"] == ["cp", "-r", "/opt/hub/.", mount["mountPath"]]
    assert mount in hub["extraVolumeMounts"]
    assert hub["extraEnv"] == {"PYTHONPATH": mount["mountPath"]}
    assert {"name": mount["name"], "emptyDir": {}} in hub["extraVolumes"]
    assert (
        first["securityContext"]["runAsUser"]
        == hub["containerSecurityContext"]["runAsUser"]
    )


def test_the_hubs_image_stays_the_one_of_its_chart(overlay):
    own = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values(overlay)["hub"]["image"] == own["hub"]["image"]


@pytest.mark.parametrize("overlay", ["notes", "restricted"])
async def test_users_pods_need_this_level(configured, overlay, monkeypatch):
    """z2jh's own way to close the cloud's metadata takes NET_ADMIN."""
    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **_: None)
    spawner = KubeSpawner(config=configured, _mock=True)
    spawner.port = 8888
    pod = as_json(await spawner.get_pod_manifest())
    assert is_restricted(pod["spec"]) == (overlay == "restricted")
    await spawner.api.api_client.close()


def test_no_program_stands_in_the_values_but_a_call_of_ours(overlay):
    [program] = values(overlay)["hub"]["extraConfig"].values()
    assert program.splitlines() == [
        "from z2jh import get_config",
        "from jupyterhub_gpu_reclaim.hub.config import configure",
        'configure(c, placement="kubernetes", **get_config("custom.gpuReclaim"))',
    ]


def test_no_culler_ends_what_is_to_be_saved(overlay):
    assert values(overlay)["cull"]["enabled"] is False
