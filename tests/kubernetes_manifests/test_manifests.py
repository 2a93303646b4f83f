"""What the chart makes without being told more: least rights, each with a reason."""

import base64
import contextlib
import json
import re
import ssl
from pathlib import Path

import pytest
from kubespawner import KubeSpawner

from jupyterhub_gpu_reclaim.cli import agent_secrets
from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.linux.capabilities import NEEDED
from jupyterhub_gpu_reclaim.node.app import STOP_SECONDS, AgentApp
from jupyterhub_gpu_reclaim.service.settings.options import Options
from jupyterhub_gpu_reclaim.service.settings.placement import AGENT_NAME, AGENT_SELECTOR
from jupyterhub_gpu_reclaim.store.format import identity
from jupyterhub_gpu_reclaim.store.format.keys import load_keys
from tests.kube.schemas import problems
from tests.support import helm
from tests.support.cluster_rules import RULES
from tests.support.containers import CAPABILITIES
from tests.support.helm import FOLDER, LEAST, agents, merged, rendered

pytestmark = helm.needed

NAMESPACES = {"sessions": "jupyterhub", "agents": "gpu-reclaim", "cluster": None}
VARIANTS = {
    "object store": LEAST,
    "with a login": merged(LEAST, {"store": {"optionsSecret": "gpu-reclaim-store"}}),
    "volume": merged(LEAST, {"store": {"url": "", "volume": {"create": True}}}),
    "without GPUs": merged(LEAST, {"gpu": {"enabled": False}}),
}


def pod():
    return agents()[0]


def container():
    return agents()[1]


def decoded(secret):
    return {name: base64.b64decode(text) for name, text in secret["data"].items()}


@pytest.fixture(scope="module")
def secrets():
    return agent_secrets.new(agent_secrets.Wanted())


def rules(objects):
    """Of all roles: (resource, verb, namespace, names)."""
    for one in objects:
        if one["kind"] in {"Role", "ClusterRole"}:
            for rule in one["rules"]:
                assert rule["apiGroups"] == [""]
                [resource] = rule["resources"]
                names = tuple(rule.get("resourceNames", ()))
                for verb in rule["verbs"]:
                    yield resource, verb, one["metadata"].get("namespace"), names


def test_the_service_may_do_what_its_client_does_and_nothing_else():
    given = set(rules(rendered()))
    needed = {(r.resource, v, NAMESPACES[r.scope], ()) for r in RULES for v in r.verbs}
    assert given == needed
    text = (FOLDER / "templates" / "rbac.yaml").read_text()
    for rule in RULES:
        assert f"# {rule.why}\n" in text


def test_the_hook_may_make_secrets_and_read_its_own():
    wanted = agent_secrets.Wanted()
    own = (wanted.token, wanted.tls, wanted.master_keys)
    assert set(rules(helm.hooks("pre-install"))) == {
        ("secrets", "create", "gpu-reclaim", ()),
        ("secrets", "get", "gpu-reclaim", own),
        ("secrets", "create", "jupyterhub", ()),
        ("secrets", "get", "jupyterhub", (wanted.access,)),
        ("secrets", "update", "jupyterhub", (wanted.access,)),
    }


def test_the_hook_is_there_only_while_it_runs_and_before_all_else():
    made = helm.hooks("pre-install")
    assert made == helm.hooks("pre-upgrade")
    for one in made:
        notes = one["metadata"]["annotations"]
        assert "hook-succeeded" in notes["helm.sh/hook-delete-policy"]
        weight = int(notes["helm.sh/hook-weight"])
        assert weight == (-1 if one["kind"] == "Job" else -2)
    assert not helm.hooks("pre-install", merged(LEAST, {"secrets": {"make": False}}))


def test_the_hook_calls_a_command_that_there_is(capsys):
    job = helm.one_of(helm.hooks("pre-install"), "Job")
    spec = job["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    [made] = spec["containers"]
    # this is in no pod: it has come as far as to look for its account
    assert main([*made["command"][1:], *made["args"]]) == 1
    assert "--make is for a pod with an account" in capsys.readouterr().err


def test_every_role_is_bound_to_the_hubs_account_and_the_agents_have_none():
    objects = rendered()
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
    lines = (FOLDER / "templates" / "_capabilities.tpl").read_text().splitlines()
    without = {"NET_RAW", "NET_BIND_SERVICE", "AUDIT_WRITE"}  # explained together
    for name in named - without:
        assert any(re.search(rf"- {name} # \w", one) for one in lines), name


def test_a_session_does_not_inherit_anything_narrow_from_the_agent():
    context = container()["securityContext"]
    assert context["allowPrivilegeEscalation"] is True  # no "no new privileges"
    assert context["seccompProfile"] == {"type": "Unconfined"}
    assert context["appArmorProfile"] == {"type": "Unconfined"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_agent_takes_its_arguments(variant):
    spec, made = agents(VARIANTS[variant])
    environment = {one["name"]: one["value"] for one in made["env"]}
    url = environment["STORE_URL"]
    app = AgentApp()
    app.parse_command_line([word.replace("$(STORE_URL)", url) for word in made["args"]])
    assert app.placement == "kubernetes"
    assert app.listen == f"0.0.0.0:{made['ports'][0]['containerPort']}"
    assert app.store_url == url
    mounts = {m["mountPath"]: m["name"] for m in made["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in spec["volumes"]}
    used = [app.token_file, app.certificate, app.private_key]
    used += [app.master_key_dir]
    used += filter(None, [app.store_options_file])
    used += [url] if url.startswith("/") else []
    for path in used:
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path
    assert spec["terminationGracePeriodSeconds"] > 2 * STOP_SECONDS
    assert ("NVIDIA_VISIBLE_DEVICES" in environment) == ("runtimeClassName" in spec)


def test_the_service_looks_where_the_agents_are():
    options, made = Options(), rendered()
    name, _, value = AGENT_SELECTOR.partition("=")
    template = helm.one_of(made, "DaemonSet")["spec"]["template"]
    assert template["metadata"]["labels"] == {name: value}
    policy = helm.one_of(made, "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == {name: value}
    [port] = container()["ports"]
    assert port["containerPort"] == options.agent_port
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": port["name"]}]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["port"] == port["name"]
        assert container()[probe]["httpGet"]["scheme"] == "HTTPS"


def test_the_agents_policy_lets_the_hubs_pod_in_and_no_users():
    policy = helm.one_of(rendered(), "NetworkPolicy")
    [rule] = policy["spec"]["ingress"]
    [source] = rule["from"]  # one: both of its selectors must match
    wanted = source["podSelector"]["matchLabels"].items()
    [hub] = [
        one
        for one in helm.documents(helm.ROOT / "tests" / "cluster" / "hub.yaml")
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "hub")
    ]
    assert wanted <= hub["spec"]["template"]["metadata"]["labels"].items()
    namespaces = source["namespaceSelector"]["matchLabels"]
    assert namespaces == {"kubernetes.io/metadata.name": "jupyterhub"}
    # KubeSpawner's, which z2jh has too: a user's pod is of another component.
    users = KubeSpawner.component_label.default_value
    assert ("app.kubernetes.io/component", users) not in wanted
    assert rule["ports"] == [{"port": "agent"}]
    [port] = container()["ports"]
    assert (port["name"], port["containerPort"]) == ("agent", Options().agent_port)
    template = helm.one_of(rendered(), "DaemonSet")["spec"]["template"]
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert chosen == template["metadata"]["labels"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]  # their store is anywhere


def test_the_pod_of_helm_test_alone_is_let_in_beside_the_hubs():
    made = helm.hooks("test")
    [rule] = helm.one_of(made, "NetworkPolicy")["spec"]["ingress"]
    labels = helm.one_of(made, "Pod")["metadata"]["labels"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert rule["ports"] == [{"port": "agent"}]


@pytest.mark.parametrize("monitored", [False, True])
def test_the_service_is_reached_through_the_proxy_and_by_no_user(monitored):
    values = helm.hub_values(merged(LEAST, {"monitoring": {"podMonitor": monitored}}))
    rules = values["hub"]["networkPolicy"]["ingress"]
    proxy = {"app.kubernetes.io/component": "proxy"}
    prometheus = {"kubernetes.io/metadata.name": "monitoring"}
    sources = [[{"podSelector": {"matchLabels": proxy}}]]
    if monitored:
        sources.append([{"namespaceSelector": {"matchLabels": prometheus}}])
    assert [rule["from"] for rule in rules] == sources
    assert [rule["ports"] for rule in rules] == [[{"port": 10101}]] * len(sources)


def test_no_agent_takes_a_gpu():
    for part in container()["resources"].values():
        assert not any("gpu" in name for name in part)


def test_no_image_is_left_to_chance():
    found = re.findall(r"\bimage: (\S+)", helm.text() + helm.notes())
    assert len(found) >= 5
    for image in found:
        assert re.search(r":\d+\.\d+\.\d+$", image), image


def test_the_secrets_are_those_that_are_mounted_and_open_what_they_should(
    secrets, tmp_path
):
    for one in secrets:
        assert problems(one) == []
    by_name = {(s["metadata"]["namespace"], s["metadata"]["name"]): s for s in secrets}
    mounted = [v["secret"]["secretName"] for v in pod()["volumes"] if "secret" in v]
    theirs = [
        volume["secret"]["secretName"]
        for volume in helm.hub_values()["hub"]["extraVolumes"]
        if "secret" in volume
    ]
    wanted = {("gpu-reclaim", name) for name in mounted}
    assert set(by_name) == wanted | {("jupyterhub", name) for name in theirs}
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


def test_the_store_is_begun_with_the_secret_of_keys(secrets, tmp_path, capsys):
    """The Job's own words, with folders in place of what is mounted."""
    job = helm.one_of(rendered(VARIANTS["volume"]), "Job")
    [made] = job["spec"]["template"]["spec"]["containers"]
    keys, place = tmp_path / "keys", tmp_path / "volume"
    for folder in (keys, place):
        folder.mkdir()
    [secret] = [s for s in secrets if s["metadata"]["name"].endswith("master-keys")]
    for name, key in decoded(secret).items():
        (keys / name).write_bytes(key)
        (keys / name).chmod(0o400)
    words = [
        word.replace("/etc/gpu-reclaim/master-keys", str(keys)).replace(
            "/var/lib/gpu-reclaim-store", str(place)
        )
        for word in [*made["command"][1:], *made["args"], "--json"]
    ]
    for _ in range(2):
        assert main(words) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["store"] == load_keys(folder=keys).store_id
    assert (
        identity.decode((place / "sessions" / "identity").read_bytes()) == told["store"]
    )
