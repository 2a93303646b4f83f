"""What the tests on a real cluster would deploy, as far as that shows without one."""

import base64
import json
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from traitlets.config import Config

from jupyterhub_gpu_reclaim.node.app import AgentApp
from tests.cluster.deployment import (
    Wanted,
    cluster_wide,
    everything,
    namespaces,
    secrets,
)
from tests.kube.schemas import problems
from tests.support import helm

pytestmark = helm.needed

IMAGES = {
    role: f"x/{role}:1.2" for role in ("agent", "hub", "proxy", "session", "store")
}
PLAIN = Wanted(run="grt-1", images=IMAGES)
SPECIAL = Wanted(
    run="grt-2",
    images=IMAGES,
    volume={"hostPath": {"path": "/shared"}},
    uid=0,
    without=("SYS_RESOURCE",),
    gpu=True,
)


@pytest.mark.parametrize("wanted", [PLAIN, SPECIAL], ids=lambda wanted: wanted.run)
def test_all_of_it_is_valid_and_in_namespaces_of_its_own(wanted):
    for one in [*namespaces(wanted), *secrets(wanted), *everything(wanted)]:
        assert problems(one) == []
        name, where = one["metadata"]["name"], one["metadata"].get("namespace")
        assert where in {wanted.hub, wanted.agents} or wanted.run in name
        for subject in one.get("subjects", ()):
            assert subject["namespace"] == wanted.hub
    assert len(list(cluster_wide(wanted))) == 2


@pytest.mark.parametrize("wanted", [PLAIN, SPECIAL], ids=lambda wanted: wanted.run)
def test_the_hubs_configuration_is_a_program_that_ends_well(wanted, tmp_path):
    [made] = [one for one in everything(wanted) if one["kind"] == "ConfigMap" and
              one["metadata"]["name"] == "hub"]  # fmt: skip
    c = Config()
    text = made["data"]["jupyterhub_config.py"]
    text = text.replace("/srv/jupyterhub/gpu-reclaim", str(tmp_path / "state"))
    exec(compile(text, "jupyterhub_config.py", "exec"), {"get_config": lambda: c})
    [ours, tests] = c.JupyterHub.services
    agents = f"--ReclaimService.agent_namespace={wanted.agents}"
    assert agents in json.loads(ours["environment"]["GPU_RECLAIM_OPTIONS"])
    assert tests["name"] == "tests"
    assert c.KubeSpawner.image == "x/session:1.2"
    mounted = c.KubeSpawner.volume_mounts[0]
    assert ("subPath" in mounted) == bool(wanted.volume)


def test_the_agent_takes_the_arguments_of_this_run():
    [agents] = [one for one in everything(SPECIAL) if one["kind"] == "DaemonSet"]
    pod = agents["spec"]["template"]["spec"]
    app = AgentApp()
    app.parse_command_line(
        [
            word.replace("$(STORE_URL)", "s3://x/y")
            for word in pod["containers"][0]["args"]
        ]
    )
    assert app.realm == "grt-2"
    added = pod["containers"][0]["securityContext"]["capabilities"]["add"]
    assert "SYS_RESOURCE" not in added
    assert "SYS_PTRACE" in added
    assert "runtimeClassName" in pod


def test_the_store_is_reached_under_the_name_in_its_certificate():
    made = {(one["kind"], one["metadata"]["name"]): one for one in secrets(PLAIN)}
    login = made["Secret", "gpu-reclaim-store"]["data"]
    options = json.loads(base64.b64decode(login["options.json"]))
    host = urlsplit(options["endpoint"]).hostname
    assert host == f"store.{PLAIN.agents}.svc"
    tls = made["Secret", "store"]["data"]
    leaf = x509.load_pem_x509_certificate(base64.b64decode(tls["tls.crt"]))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [host]
    authority = x509.load_pem_x509_certificate(base64.b64decode(login["ca.crt"]))
    leaf.verify_directly_issued_by(authority)
