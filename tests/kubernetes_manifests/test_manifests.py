"""``etc/kubernetes``: valid, least rights, each with a reason, and pinned."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kubespawner import KubeSpawner

from jupyterhub_gpu_reclaim.linux.capabilities import NEEDED
from jupyterhub_gpu_reclaim.node.app import STOP_SECONDS, AgentApp
from jupyterhub_gpu_reclaim.service.clients.kubernetes import RULES
from jupyterhub_gpu_reclaim.service.settings.options import Options
from jupyterhub_gpu_reclaim.service.settings.placement import AGENT_NAME, AGENT_SELECTOR
from jupyterhub_gpu_reclaim.store.format import identity
from jupyterhub_gpu_reclaim.store.format.keys import load_keys
from tests.kube.schemas import problems
from tests.support.containers import CAPABILITIES
from tests.support.kustomized import AGENT_IMAGE, FOLDER, built, documents

VARIANTS = [(), ("without-gpu",), ("store-volume",), ("store-volume", "without-gpu")]
NAMESPACES = {"sessions": "jupyterhub", "agents": "gpu-reclaim", "cluster": None}


def daemon_set(*components):
    [found] = [one for one in built(*components) if one["kind"] == "DaemonSet"]
    return found


def pod(*components):
    return daemon_set(*components)["spec"]["template"]["spec"]


def container(*components):
    [found] = pod(*components)["containers"]
    return found


def secret_names():
    return [v["secret"]["secretName"] for v in pod()["volumes"] if "secret" in v]


def all_pods():
    """Every pod's template that stands in a manifest, with where."""
    for path in FOLDER.rglob("*.yaml"):
        if path.is_relative_to(FOLDER / "templates"):
            continue  # what Helm makes of them: test_chart.py
        for one in documents(path):
            if isinstance(one, dict) and "template" in (one.get("spec") or {}):
                yield path.name, one["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def secrets():
    """What make-secrets makes."""
    done = subprocess.run(
        [FOLDER / "make-secrets"], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def decoded(secret):
    return {name: base64.b64decode(text) for name, text in secret["data"].items()}


def test_every_object_is_what_the_real_schemas_say(secrets):
    seen = [*documents(FOLDER / "hub" / "hub.yaml"), *secrets]
    known = {repr(one): one for variant in VARIANTS for one in built(*variant)}
    for one in [*seen, *known.values()]:
        assert problems(one) == []
    kinds = {one["kind"] for one in known.values()}
    assert kinds >= {"DaemonSet", "ClusterRole", "NetworkPolicy", "Role"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_makes_of_it_what_these_tests_take_it_for(tmp_path):
    for at, components in enumerate(VARIANTS):
        folder = tmp_path / str(at)
        shutil.copytree(FOLDER, folder)
        own = yaml.safe_load((folder / "kustomization.yaml").read_text())
        del own["images"]
        own["components"] = list(components)
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
        done = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
        )
        theirs = list(yaml.safe_load_all(done.stdout))
        assert sorted(map(_stable, theirs)) == sorted(map(_stable, built(*components)))


def _stable(one):
    return yaml.safe_dump(one, sort_keys=True)


def test_the_service_may_do_what_its_client_does_and_nothing_else():
    given = set()
    for one in built():
        if one["kind"] in {"Role", "ClusterRole"}:
            for rule in one["rules"]:
                assert rule["apiGroups"] == [""]
                where = one["metadata"].get("namespace")
                [resource] = rule["resources"]
                given |= {(resource, verb, where) for verb in rule["verbs"]}
    needed = {(r.resource, v, NAMESPACES[r.scope]) for r in RULES for v in r.verbs}
    assert given == needed
    text = (FOLDER / "base" / "rbac.yaml").read_text()
    for rule in RULES:
        assert f"# {rule.why}\n" in text


def test_every_role_is_bound_to_the_hubs_account_and_the_agents_have_none():
    objects = built()
    roles = {
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        for one in objects
        if one["kind"] in {"Role", "ClusterRole"}
    }
    bound = set()
    for one in objects:
        if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}:
            ref = one["roleRef"]
            bound.add((ref["kind"], one["metadata"].get("namespace"), ref["name"]))
            assert one["subjects"] == [
                {"kind": "ServiceAccount", "name": "hub", "namespace": "jupyterhub"}
            ]
    assert bound == roles
    assert pod()["automountServiceAccountToken"] is False


def test_the_agents_capabilities_are_enough_and_each_has_its_reason():
    context = container()["securityContext"]
    named = set(context["capabilities"]["add"])
    assert named >= {*NEEDED, "SYS_RESOURCE"}
    assert named >= {name.removeprefix("CAP_") for name in CAPABILITIES}
    assert context["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in context
    lines = (FOLDER / "base" / "agent.yaml").read_text().splitlines()
    without = {"NET_RAW", "NET_BIND_SERVICE", "AUDIT_WRITE"}  # explained together
    for name in named - without:
        assert any(re.search(rf"- {name} # \w", one) for one in lines), name


def test_a_session_does_not_inherit_anything_narrow_from_the_agent():
    context = container()["securityContext"]
    assert context["allowPrivilegeEscalation"] is True  # no "no new privileges"
    assert context["seccompProfile"] == {"type": "Unconfined"}
    assert context["appArmorProfile"] == {"type": "Unconfined"}


@pytest.mark.parametrize("components", VARIANTS, ids="+".join)
def test_the_agent_takes_its_arguments(components):
    spec = container(*components)
    maps = [one for one in built(*components) if one["kind"] == "ConfigMap"]
    url = maps[0]["data"]["store-url"]
    app = AgentApp()
    app.parse_command_line([word.replace("$(STORE_URL)", url) for word in spec["args"]])
    assert app.placement == "kubernetes"
    assert app.listen == f"0.0.0.0:{spec['ports'][0]['containerPort']}"
    assert app.store_url == url
    assert bool(app.store_options_file) == app.store_url.startswith("s3:")
    mounts = {m["mountPath"]: m["name"] for m in spec["volumeMounts"]}
    assert set(mounts.values()) == {
        volume["name"] for volume in pod(*components)["volumes"]
    }
    used = [app.token_file, app.certificate, app.private_key, app.state_dir]
    used += [app.master_key_dir, app.store_options_file or app.store_url]
    for path in used:
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path
    assert pod()["terminationGracePeriodSeconds"] > 2 * STOP_SECONDS
    environment = {variable["name"] for variable in spec["env"]}
    assert ("NVIDIA_VISIBLE_DEVICES" in environment) == (
        "runtimeClassName" in pod(*components)
    )


def test_the_service_looks_where_the_agents_are():
    options, found = Options(), daemon_set()
    name, _, value = AGENT_SELECTOR.partition("=")
    assert found["spec"]["template"]["metadata"]["labels"] == {name: value}
    [policy] = [one for one in built() if one["kind"] == "NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {name: value}
    [port] = container()["ports"]
    assert port["containerPort"] == options.agent_port
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": port["name"]}]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["port"] == port["name"]
        assert container()[probe]["httpGet"]["scheme"] == "HTTPS"


def test_the_agents_policy_lets_the_hubs_pod_in_and_no_users():
    [policy] = [one for one in built() if one["kind"] == "NetworkPolicy"]
    [rule] = policy["spec"]["ingress"]
    [source] = rule["from"]  # one: both of its selectors must match
    wanted = source["podSelector"]["matchLabels"].items()
    [hub] = [
        one
        for one in documents(FOLDER / "hub" / "hub.yaml")
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "hub")
    ]
    assert wanted <= hub["spec"]["template"]["metadata"]["labels"].items()
    namespaces = source["namespaceSelector"]["matchLabels"]
    assert namespaces == {"kubernetes.io/metadata.name": hub["metadata"]["namespace"]}
    # KubeSpawner's, which z2jh has too: a user's pod is of another component.
    users = KubeSpawner.component_label.default_value
    assert ("app.kubernetes.io/component", users) not in wanted


def test_no_agent_takes_a_gpu():
    for part in container()["resources"].values():
        assert not any("gpu" in name for name in part)


def test_no_image_is_left_to_chance():
    pods = list(all_pods())
    assert len(pods) >= 3
    for where, spec in pods:
        for one in [*spec["containers"], *spec.get("initContainers", ())]:
            _, _, tag = one["image"].rpartition(":")
            assert re.match(r"\d+\.\d+", tag), (where, one["image"])
    own = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert [image["name"] for image in own["images"]] == [AGENT_IMAGE]


def test_the_secrets_are_those_that_are_mounted_and_open_what_they_should(
    secrets, tmp_path
):
    by_name = {(s["metadata"]["namespace"], s["metadata"]["name"]): s for s in secrets}
    mounted = {("gpu-reclaim", name) for name in secret_names()}
    assert set(by_name) == mounted | {("jupyterhub", "gpu-reclaim-agent-access")}
    given = decoded(by_name["jupyterhub", "gpu-reclaim-agent-access"])
    token = decoded(by_name["gpu-reclaim", "gpu-reclaim-agent-token"])["token"]
    assert given["token"] == token
    assert len(token.strip()) == 64
    for name, key in decoded(by_name["gpu-reclaim", "gpu-reclaim-master-keys"]).items():
        (tmp_path / name).write_bytes(key)
    assert identity.is_id(load_keys(folder=tmp_path).store_id)
    fixed = [name for (_, name), one in by_name.items() if one.get("immutable")]
    assert fixed == ["gpu-reclaim-master-keys"]
    tls = decoded(by_name["gpu-reclaim", "gpu-reclaim-agent-tls"])
    for name, text in {**tls, "ca.crt": given["ca.crt"]}.items():
        (tmp_path / f"_{name}").write_bytes(text)
    assert _meet(tmp_path, AGENT_NAME)
    with pytest.raises(ssl.SSLCertVerificationError):
        _meet(tmp_path, "somebody-else")


PAGES = (
    "docs/how-to/kubernetes.md",
    "docs/how-to/store.md",
    "docs/tutorial/kubernetes.md",
    "etc/kubernetes/templates/NOTES.txt",
)


@pytest.mark.parametrize("page", PAGES)
def test_store_is_begun_with_what_the_secrets_and_the_pages_say(
    secrets, tmp_path, page
):
    """The very line of the page, with the paths that are mounted in the agents."""
    text = (FOLDER.parents[1] / page).read_text()
    found = re.search(r"sh -c '([^']*jupyterhub-gpu-reclaim[^']*store \w+[^']*)'", text)
    line = found[1].replace("\\\n", " ")
    arguments = container()["args"]
    for option, setting in (
        ("--key-dir", "master_key_dir"),
        ("--options-file", "store_options_file"),
    ):
        [given] = re.findall(rf"{option} (\S+)", line)
        assert f"--AgentApp.{setting}={given}" in arguments
    by_name = {one["metadata"]["name"]: one for one in secrets}
    for name, key in decoded(by_name["gpu-reclaim-master-keys"]).items():
        (tmp_path / name).write_bytes(key)
    line = line.replace("/etc/gpu-reclaim/master-keys", str(tmp_path))
    line = re.sub(r" --options-file \S+", "", line)  # a volume has none
    place = tmp_path / ".store"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "STORE_URL": str(place), "PATH": path}
    if "store init" not in line:
        begin = line.replace("store verify", "store init")
        subprocess.run(["sh", "-c", begin], env=environment, check=True)
    done = subprocess.run(
        ["sh", "-c", line], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    store = load_keys(folder=tmp_path).store_id
    assert identity.decode((place / "identity").read_bytes()) == store


def _meet(folder, name):
    """A TLS handshake without a network, the way agent and service make it."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "_tls.crt", folder / "_tls.key")
    client = ssl.create_default_context(cafile=folder / "_ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].version()


def test_secrets_take_the_stores_login_and_other_namespaces(tmp_path):
    login = '{"access_key_id": "a", "secret_access_key": "b"}'
    (tmp_path / "options.json").write_text(login)
    done = subprocess.run(
        [FOLDER / "make-secrets", tmp_path / "options.json"],
        env={**os.environ, "HUB": "teaching", "AGENTS": "below"},
        capture_output=True,
        text=True,
        check=True,
    )
    made = {s["metadata"]["name"]: s for s in yaml.safe_load_all(done.stdout)}
    assert decoded(made["gpu-reclaim-store"])["options.json"].decode() == login
    assert made["gpu-reclaim-agent-access"]["metadata"]["namespace"] == "teaching"
    assert made["gpu-reclaim-store"]["metadata"]["namespace"] == "below"


def test_cert_manager_makes_the_same_secret():
    made = documents(FOLDER / "cert-manager" / "certificates.yaml")
    [leaf] = [c["spec"] for c in made if c["spec"].get("dnsNames")]
    assert leaf["dnsNames"] == [AGENT_NAME]
    assert leaf["secretName"] in secret_names()
    issuers = {one["metadata"]["name"] for one in made if one["kind"] == "Issuer"}
    asked = [one["spec"]["issuerRef"] for one in made if one["kind"] == "Certificate"]
    assert {reference["name"] for reference in asked} == issuers
