"""``charts/jupyterhub-gpu-reclaim``: what Helm makes of values, and what it refuses."""

import json

import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.app import AgentApp
from tests.kube.schemas import problems
from tests.support import helm
from tests.support.helm import FOLDER, LEAST, agents, merged, refusal, rendered
from tests.support.ran import ran

SCHEMA = json.loads((FOLDER / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((FOLDER / "values.yaml").read_text())
EXAMPLES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((FOLDER / "examples").glob("*.yaml"))
}
OPERATOR = json.loads(
    (
        helm.ROOT / "tests/kubernetes_manifests/chart/prometheus-operator.json"
    ).read_text()
)
#: Values that are no typing mistakes, but cannot work: what is said of each.
SENTENCES = [
    ({"image": {"registry": ""}}, "image.registry is needed"),
    ({"store": {"url": ""}}, "A place for suspended sessions is needed"),
    ({"store": {"onEachNode": True}}, "are more: store.onEachNode, store.url"),
    ({"store": {"volume": {"claim": "c"}}}, "are more: store.url, store.volume.claim"),
    ({"store": {"url": "/data"}}, "a folder is store.volume"),
    (
        {"store": {"url": "", "onEachNode": True, "options": {"region": "x"}}},
        "are for an object store",
    ),
    ({"hub": {"namespace": "gpu-reclaim"}}, "must not be in the Hub's namespace"),
    ({"realm": "Big"}, "realm has up to 30 lower-case letters"),
    ({"gpu": {"driverFolder": "/opt/nvidia"}}, "needs security.privileged"),
]
#: Typing mistakes, which the schema names.
MISTAKES = [
    ({"image": {"repo": "x"}}, "'repo'"),
    ({"image": {"registry": "https://x"}}, "/image/registry"),
    ({"gpu": {"enabled": "yes"}}, "/gpu/enabled"),
    ({"hub": {"namespace": "UP"}}, "/hub/namespace"),
    ({"store": {"volume": {"size": "much"}}}, "/store/volume/size"),
    ({"stateFolder": "relative"}, "/stateFolder"),
    ({"maxUnavailable": 0}, "/maxUnavailable"),
    ({"extraArgs": ["--log-level=10"]}, "/extraArgs/0"),
    ({"security": {"selinux": {}}}, "'selinux'"),
]
MORE = {
    "realm": {"realm": "teaching", "networkPolicy": False, "priorityClass": ""},
    "host path": {"store": {"url": "", "volume": {"hostPath": "/mnt/shared"}}},
    "claim": {"store": {"url": "", "volume": {"claim": "mine"}}},
    "nodes": {"image": {"pullSecrets": ["one"]}, "nodeSelector": None},
    "own secrets": {"secrets": {"make": False, "tls": "of-cert-manager"}},
    "dashboard": {"monitoring": {"dashboard": True, "rules": True}},
}
WAYS = {
    **EXAMPLES,
    **{name: merged(LEAST, values) for name, values in MORE.items()},
    "least": LEAST,
}


def with_least(values):
    return merged(LEAST, values)


def wrong(one):
    """What the schema of an object has against it; of OpenShift's we have none."""
    if one["apiVersion"].startswith("monitoring.coreos.com/"):
        errors = Draft202012Validator(OPERATOR[one["kind"]]).iter_errors(one)
        return [f"{error.json_path}: {error.message}" for error in errors]
    if one["apiVersion"].startswith("security.openshift.io/"):
        return []
    return problems(one)


@pytest.mark.parametrize(("values", "named"), MISTAKES)
def test_the_schema_names_typing_mistakes(values, named):
    assert not list(Draft7Validator(SCHEMA).iter_errors(with_least(DEFAULTS)))
    errors = Draft7Validator(SCHEMA).iter_errors(merged(DEFAULTS, values))
    told = [f"/{'/'.join(map(str, each.path))}: {each.message}" for each in errors]
    assert len(told) == 1
    assert named in told[0]


def test_every_value_has_a_place_in_the_schema_and_the_other_way_round():
    def names(values, schema, at=""):
        for name, value in values.items():
            yield f"{at}{name}"
            below = schema["properties"].get(name, {})
            if isinstance(value, dict) and below.get("additionalProperties") is False:
                yield from names(value, below, f"{at}{name}.")

    def told(schema, at=""):
        for name, below in schema["properties"].items():
            yield f"{at}{name}"
            if "properties" in below and name != "seLinux":
                yield from told(below, f"{at}{name}.")

    assert set(names(DEFAULTS, SCHEMA)) == set(told(SCHEMA)) - {"global"}


def test_the_chart_is_of_our_version():
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    ours = helm.ROOT / "jupyterhub_gpu_reclaim/lab/labextension/package.json"
    assert chart["appVersion"] == json.loads(ours.read_text())["version"]
    assert chart["version"] == chart["appVersion"]


@helm.needed
@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lint_has_nothing_to_say(name):
    example = FOLDER / "examples" / f"{name}.yaml"
    done = ran([helm.PROGRAM, "lint", "--strict", FOLDER, "-f", example])
    assert done.returncode == 0, done.stdout + done.stderr


@helm.needed
@pytest.mark.parametrize(("values", "sentence"), SENTENCES)
def test_values_that_cannot_work_are_refused_with_a_sentence(values, sentence):
    assert sentence in refusal(with_least(values))


@helm.needed
@pytest.mark.parametrize(("values", "named"), MISTAKES)
def test_helm_refuses_typing_mistakes(values, named):
    said = refusal(with_least(values))
    # versions of Helm write the place in different ways
    places = [part for part in named.strip("'").split("/") if not part.isdigit()]
    assert all(part in said for part in places)
    assert "schema" in said


@helm.needed
@pytest.mark.parametrize("name", WAYS)
def test_all_that_values_can_make_is_valid(name):
    namespace = "gpu-reclaim" if name in EXAMPLES else "elsewhere"
    for one in helm.loaded(helm.text(WAYS[name], namespace=namespace)):
        assert wrong(one) == [], name
        assert one["metadata"].get("namespace") in {namespace, "jupyterhub", None}


@helm.needed
def test_the_schemas_find_what_they_are_for():
    kinds = [
        one for one in rendered(EXAMPLES["s3"]) if "monitoring" in one["apiVersion"]
    ]
    assert sorted(one["kind"] for one in kinds) == ["PodMonitor", "PrometheusRule"]
    for one in kinds:
        assert wrong(one | {"spec": {**one["spec"], "oops": 1}})


@helm.needed
@pytest.mark.parametrize("name", WAYS)
def test_no_secret_is_in_what_is_rendered_or_told(name):
    made = helm.text(WAYS[name]) + helm.notes(WAYS[name])
    assert "kind: Secret\n" not in made
    assert "PRIVATE KEY" not in made
    assert "randAlphaNum" not in "".join(
        path.read_text() for path in (FOLDER / "templates").rglob("*.*")
    )


@helm.needed
def test_an_upgrade_touches_neither_secrets_nor_store():
    """The hook looks first (tests/cli/test_agent_secrets.py); nobody begins a store."""
    for values in (LEAST, EXAMPLES["volume"]):
        first, later = rendered(values), rendered(values, upgrade=True)
        gone = [one for one in first if one not in later]
        assert [one["metadata"]["name"] for one in gone] == ["gpu-reclaim-store-init"]
        assert [one for one in later if one not in first] == []


@helm.needed
def test_two_hubs_of_one_cluster_share_nothing_by_name():
    """Agents, state folders, and the rights of each Hub."""

    def both(realm, hub, namespace):
        values = with_least({"realm": realm, "hub": {"namespace": hub}})
        made = rendered(values, namespace=namespace)
        return [*made, *helm.hooks("pre-install", values, namespace=namespace)]

    one, two = both("one", "a", "agents-a"), both("two", "a", "agents-b")

    def names(some):
        return {
            (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
            for o in some
        }

    assert not names(one) & names(two)
    pod, container = agents(with_least({"realm": "one"}))
    assert container["args"][-1] == "--AgentApp.realm=one"
    [state] = [v["hostPath"]["path"] for v in pod["volumes"] if v["name"] == "state"]
    assert state == "/var/lib/jupyterhub-gpu-reclaim-one"
    kept = {(o["kind"], o["metadata"]["name"]) for o in one}
    for role in (o for o in one if o["kind"].endswith("Binding")):
        assert (role["roleRef"]["kind"], role["roleRef"]["name"]) in kept
    values = helm.hub_values(with_least({"realm": "one"}))
    assert values["hub"]["config"]["SessionPodSpawner"] == {"realm": "one"}


@helm.needed
def test_a_driver_without_a_runtime_class_and_all_rights():
    pod, container = agents(EXAMPLES["gke"])
    assert "runtimeClassName" not in pod
    assert "nodeSelector" not in pod
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "driver"]
    [path] = [v["value"] for v in container["env"] if v["name"] == "LD_LIBRARY_PATH"]
    assert path == mount["mountPath"] + "/lib64"
    context = container["securityContext"]
    assert context["privileged"] is True
    assert "capabilities" not in context


@helm.needed
def test_openshift_lets_the_account_have_what_the_pods_ask_for_and_no_more():
    values = EXAMPLES["openshift"]
    made = rendered(values)
    allowed = helm.one_of(made, "SecurityContextConstraints")
    pod, container = agents(values)
    context = container["securityContext"]
    assert allowed["allowedCapabilities"] == context["capabilities"]["add"]
    assert allowed["allowHostPID"] is pod["hostPID"]
    assert allowed["allowPrivilegedContainer"] is False
    assert context["seLinuxOptions"] == {"type": "spc_t"}
    job = helm.one_of(made, "Job")["spec"]["template"]["spec"]
    [init] = job["containers"]
    added = init["securityContext"]["capabilities"]["add"]
    assert set(added) <= set(allowed["allowedCapabilities"])
    assert "runtime/default" in allowed["seccompProfiles"]
    volumes = [*pod["volumes"], *job["volumes"]]
    kinds = {name for volume in volumes for name in volume if name != "name"}
    assert kinds <= set(allowed["volumes"])
    [binding] = [
        o
        for o in made
        if o["kind"] == "RoleBinding"
        and o["subjects"][0]["name"] == pod["serviceAccountName"]
    ]
    assert job["serviceAccountName"] == pod["serviceAccountName"]
    assert binding["metadata"]["namespace"] == "gpu-reclaim"
    # each namespace has users of its own
    [hook] = [o for o in helm.hooks("pre-install", values) if o["kind"] == "Job"]
    others = [hook["spec"]["template"]["spec"]]
    others.append(helm.one_of(helm.hooks("test", values), "Pod")["spec"])
    others += helm.hub_values(values)["hub"]["initContainers"]
    for one in others:
        assert "runAsUser" not in one["securityContext"]


@helm.needed
def test_a_claim_outlives_the_chart_and_another_store_restarts_the_agents():
    claim = helm.one_of(rendered(EXAMPLES["volume"]), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    pods = [agents(with_least({"store": {"url": f"s3://{n}/a"}})) for n in ("x", "y")]
    assert pods[0] != pods[1]


@helm.needed
def test_a_store_to_try_it_needs_no_secret_of_keys_and_nobody_to_begin_it():
    values = EXAMPLES["try"]
    _, container = agents(values)
    app = AgentApp()
    [url] = [v["value"] for v in container["env"] if v["name"] == "STORE_URL"]
    app.parse_command_line(
        [word.replace("$(STORE_URL)", url) for word in container["args"]]
    )
    [state] = [m for m in container["volumeMounts"] if m["name"] == "state"]
    assert app.store_url.startswith(f"{state['mountPath']}/")
    assert state_folder.DEFAULT.startswith(f"{state['mountPath']}/")
    assert not app.master_key_dir  # the agent's first start makes key and store
    assert "Job" not in {one["kind"] for one in rendered(values)}
    [hook] = [o for o in helm.hooks("pre-install", values) if o["kind"] == "Job"]
    [made] = hook["spec"]["template"]["spec"]["containers"]
    assert "--master-keys=" in made["args"]
    assert "lost with it" in helm.notes(values)


@helm.needed
def test_the_store_is_begun_by_the_command_and_the_settings_of_the_agents(tmp_path):
    values = with_least(
        {"store": {"options": {"region": "x"}, "optionsSecret": "login"}}
    )
    job = helm.one_of(rendered(values), "Job")["spec"]["template"]["spec"]
    [container] = job["containers"]
    pod, agent = agents(values)
    mounts = {m["name"]: m for m in agent["volumeMounts"]}
    assert all(mounts[m["name"]] == m for m in container["volumeMounts"])
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert all(volumes[v["name"]] == v for v in job["volumes"])
    said = " ".join(agent["args"])
    _, *others = container["args"]  # the first one is the address, for a variable
    assert len(others) == 3
    assert all(each in said for each in others)


@helm.needed
def test_the_pod_of_helm_test_calls_a_command_that_there_is(capsys):
    made = helm.hooks("test")
    pod = helm.one_of(made, "Pod")["spec"]
    [container] = pod["containers"]
    # the files are in the pod alone: it has come as far as to look for them
    assert main([*container["command"][1:], *container["args"]]) == 1
    assert "There is no file /etc/gpu-reclaim/tls/ca.crt." in capsys.readouterr().err
    service = helm.one_of(made, "Service")
    assert f"--at={service['metadata']['name']}" in container["args"]
    theirs, running = agents()
    assert f"--port={running['ports'][0]['containerPort']}" in container["args"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"]}
    named = {v["name"]: v.get("secret") for v in theirs["volumes"]}
    assert {name: named[name]["secretName"] for name in secrets} == secrets
    [authority] = [v["secret"] for v in pod["volumes"] if v["name"] == "tls"]
    assert [item["key"] for item in authority["items"]] == ["ca.crt"]


@helm.needed
def test_prometheus_and_grafana_get_what_is_in_etc():
    made = rendered(with_least({"monitoring": {"rules": True, "dashboard": True}}))
    groups = [
        group
        for name in ("rules", "alerts")
        for group in yaml.safe_load(
            (helm.ROOT / f"etc/prometheus/{name}.yml").read_text()
        )["groups"]
    ]
    assert helm.one_of(made, "PrometheusRule")["spec"]["groups"] == groups
    [shown] = helm.one_of(made, "ConfigMap")["data"].values()
    dashboard = (helm.ROOT / "etc/grafana/dashboard.json").read_text()
    assert json.loads(shown) == json.loads(dashboard)


@helm.needed
def test_prometheus_reads_the_services_metrics_with_the_hubs_own_token():
    values = EXAMPLES["s3"]
    monitor = helm.one_of(rendered(values), "PodMonitor")
    assert monitor["metadata"]["labels"] == {"release": "prometheus"}
    assert monitor["metadata"]["namespace"] == "jupyterhub"  # where the token is
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/services/gpu-reclaim/metrics"
    hub = helm.hub_values(values)["hub"]
    [name] = hub["services"]
    key = endpoint["authorization"]["credentials"]["key"]
    assert key == f"hub.services.{name}.apiToken"
    [role] = hub["loadRoles"].values()
    assert role == {"services": [name], "scopes": ["read:metrics"]}
