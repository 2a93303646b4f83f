"""``etc/kubernetes`` as a Helm chart: the same objects, changed only as values say.

Without Helm the schema of the values is tested alone. The templates read the manifests
of ``base`` themselves, so what is changed there needs no second change in the chart.
"""

from __future__ import annotations

import copy
import json

import pytest
import yaml
from jsonschema import Draft7Validator

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.node.app import AgentApp
from tests.kube.schemas import problems
from tests.support import helm
from tests.support.helm import LEAST, is_test, refusal, rendered
from tests.support.kustomized import FOLDER, built

SCHEMA = json.loads((FOLDER / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((FOLDER / "values.yaml").read_text())
ON_A_VOLUME = {
    "url": "/var/lib/gpu-reclaim-store/sessions",
    "volume": {"claim": "gpu-reclaim-store", "create": True},
}
WITHOUT_GPU = {"gpu": {"enabled": False}}
#: The components of ``kubectl apply -k``, and the values that say the same.
SAME = {
    (): {},
    ("without-gpu",): WITHOUT_GPU,
    ("store-volume",): {"store": ON_A_VOLUME},
    ("store-volume", "without-gpu"): {"store": ON_A_VOLUME, **WITHOUT_GPU},
}
#: Values that are no typing mistakes, but cannot work: what is said of each.
SENTENCES = [
    ({"image": {}}, "image.repository is needed"),
    ({"image": {"repository": "x:5000/y:1"}}, "image.repository is the place without"),
    ({"store": {}}, "store.url is needed"),
    ({"store": {"url": "ftp://x"}}, "store.url is a folder's whole path or begins"),
    ({"store": {"url": "/data"}}, "store.url is a folder, but no volume holds it"),
    ({"store": {"url": "/data", "volume": {"claim": "c"}}}, "must be a folder below"),
    ({"store": {"url": "s3://b/c", "volume": {"claim": "c"}}}, "must be a folder"),
    (
        {"store": {**ON_A_VOLUME, "volume": {"claim": "c", "hostPath": "/x"}}},
        "takes a claim or a hostPath, not both",
    ),
    ({"store": {"url": "s3://b/c", "volume": {"create": True}}}, "needs the name"),
    ({"hub": {"namespace": "gpu-reclaim"}}, "must not be in the Hub's namespace"),
    ({"realm": "Big"}, "realm has up to 30 lower-case letters"),
    ({"gpu": {"driverFolder": "/opt/nvidia"}}, "needs security.privileged"),
]
#: Typing mistakes, which the schema names.
MISTAKES = [
    ({"image": {"repo": "x"}}, "'repo'"),
    ({"gpu": {"enabled": "yes"}}, "/gpu/enabled"),
    ({"hub": {"namespace": "UP"}}, "/hub/namespace"),
    ({"store": {"volume": {"size": "much"}}}, "/store/volume/size"),
    ({"stateFolder": "relative"}, "/stateFolder"),
    ({"maxUnavailable": 0}, "/maxUnavailable"),
    ({"extraArgs": ["--log-level=10"]}, "/extraArgs/0"),
    ({"security": {"selinux": {}}}, "'selinux'"),
]


def merged(base, more):
    """As Helm does it."""
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return {**base, **{name: merged(base.get(name), more[name]) for name in more}}


def objects(values, **more):
    return [one for one in rendered(merged(LEAST, values), **more) if not is_test(one)]


def agent(values, **more):
    """The pods of the DaemonSet, and the container."""
    [found] = [one for one in objects(values, **more) if one["kind"] == "DaemonSet"]
    pod = found["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def comparable(some):
    """In any order, without what only one of the two ways needs."""
    for one in copy.deepcopy(some):
        one["metadata"].pop("annotations", None)
        if one["kind"] == "DaemonSet":
            one["spec"]["template"]["metadata"].pop("annotations", None)
            for container in one["spec"]["template"]["spec"]["containers"]:
                container.pop("imagePullPolicy", None)
        if one["kind"] != "Namespace":
            yield yaml.safe_dump(one, sort_keys=True)


@pytest.mark.parametrize(("values", "named"), MISTAKES)
def test_the_schema_names_typing_mistakes(values, named):
    assert not list(Draft7Validator(SCHEMA).iter_errors(merged(DEFAULTS, LEAST)))
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


def test_the_chart_is_of_our_version_and_leaves_out_what_it_does_not_read():
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    ours = FOLDER.parents[1] / "jupyterhub_gpu_reclaim/lab/labextension/package.json"
    assert chart["appVersion"] == json.loads(ours.read_text())["version"]
    ignored = (FOLDER / ".helmignore").read_text().splitlines()
    for name in filter(lambda line: line and not line.startswith("#"), ignored):
        assert (FOLDER / name).exists(), name
    read = {"base/agent.yaml", "base/rbac.yaml", "base/network-policy.yaml"}
    assert not {*read, "base/namespace.yaml", "store-volume/claim.yaml"} & set(ignored)


@helm.needed
@pytest.mark.parametrize("components", SAME, ids="+".join)
def test_helm_makes_the_same_as_kubectl(components):
    theirs = objects(SAME[components])
    assert sorted(comparable(theirs)) == sorted(comparable(built(*components)))


@helm.needed
@pytest.mark.parametrize(("values", "sentence"), SENTENCES)
def test_values_that_cannot_work_are_refused_with_a_sentence(values, sentence):
    least = copy.deepcopy(LEAST)
    for name in ("image", "store"):
        if name in values:
            least.pop(name)
    assert sentence in refusal(merged(least, values))


@helm.needed
@pytest.mark.parametrize(("values", "named"), MISTAKES)
def test_helm_refuses_typing_mistakes(values, named):
    said = refusal(merged(LEAST, values))
    # versions of Helm write the place in different ways
    places = [part for part in named.strip("'").split("/") if not part.isdigit()]
    assert all(part in said for part in places)
    assert "schema" in said


@helm.needed
def test_all_that_values_can_make_is_valid():
    for values in (
        {},
        {"realm": "teaching", "networkPolicy": False, "priorityClass": ""},
        {"store": {**ON_A_VOLUME, "volume": {"hostPath": "/mnt/shared"}}},
        {"image": {"pullSecrets": ["one"]}, "nodeSelector": None, "affinity": {}},
        {
            "gpu": {"runtimeClass": "", "driverFolder": "/home/kubernetes/bin/nvidia"},
            "security": {"privileged": True, "seLinux": {"type": "super_t"}},
        },
        {"openshift": True},
    ):
        for one in rendered(merged(LEAST, values), namespace="elsewhere"):
            if not one["apiVersion"].startswith("security.openshift.io/"):
                assert problems(one) == [], values
            assert one["metadata"].get("namespace") in {"elsewhere", "jupyterhub", None}


@helm.needed
def test_two_hubs_of_one_cluster_share_nothing_by_name():
    """Agents, state folders, and the rights of each Hub."""
    one = objects({"realm": "one", "hub": {"namespace": "a"}}, namespace="agents-a")
    two = objects({"realm": "two", "hub": {"namespace": "b"}}, namespace="agents-b")

    def names(some):
        return {
            (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
            for o in some
        }

    assert not names(one) & names(two)
    pod, container = agent({"realm": "one"})
    assert container["args"][-1] == "--AgentApp.realm=one"
    [state] = [v["hostPath"]["path"] for v in pod["volumes"] if v["name"] == "state"]
    assert state == "/var/lib/jupyterhub-gpu-reclaim-one"
    for role in (o for o in one if o["kind"].endswith("Binding")):
        kept = {(o["kind"], o["metadata"]["name"]) for o in one}
        assert (role["roleRef"]["kind"], role["roleRef"]["name"]) in kept
        assert [s["namespace"] for s in role["subjects"]] == ["a"]


@helm.needed
def test_namespaces_with_each_others_names_are_not_mixed_up():
    made = objects({"hub": {"namespace": "gpu-reclaim"}}, namespace="jupyterhub")
    [found] = [o for o in made if o["kind"] == "DaemonSet"]
    assert found["metadata"]["namespace"] == "jupyterhub"
    [policy] = [o for o in made if o["kind"] == "NetworkPolicy"]
    source = policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]
    assert source["matchLabels"] == {"kubernetes.io/metadata.name": "gpu-reclaim"}


@helm.needed
def test_a_driver_without_a_runtime_class_and_all_rights():
    values = {
        "gpu": {"runtimeClass": "", "driverFolder": "/home/kubernetes/bin/nvidia"},
        "security": {"privileged": True},
    }
    pod, container = agent(values)
    assert "runtimeClassName" not in pod
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "driver"]
    [path] = [v["value"] for v in container["env"] if v["name"] == "LD_LIBRARY_PATH"]
    assert path == mount["mountPath"] + "/lib64"
    context = container["securityContext"]
    assert context["privileged"] is True
    assert "capabilities" not in context


@helm.needed
def test_openshift_lets_the_account_have_what_the_pod_asks_for_and_no_more():
    made = objects({"openshift": True})
    [allowed] = [o for o in made if o["kind"] == "SecurityContextConstraints"]
    pod, container = agent({"openshift": True})
    context = container["securityContext"]
    assert allowed["allowedCapabilities"] == context["capabilities"]["add"]
    assert allowed["allowHostPID"] is pod["hostPID"]
    assert allowed["allowPrivilegedContainer"] is False
    assert context["seLinuxOptions"] == {"type": "spc_t"}
    kinds = {name for volume in pod["volumes"] for name in volume if name != "name"}
    used = {"secret": "secret", "hostPath": "hostPath"}
    assert {used[kind] for kind in kinds} <= set(allowed["volumes"])
    [binding] = [
        o
        for o in made
        if o["kind"] == "RoleBinding" and o["roleRef"]["name"].endswith("-agents")
        and o["subjects"][0]["name"] == pod["serviceAccountName"]
    ]  # fmt: skip
    assert binding["metadata"]["namespace"] == "gpu-reclaim"


@helm.needed
def test_a_claim_outlives_the_chart_and_another_store_restarts_the_agents():
    [claim] = [
        o for o in objects({"store": ON_A_VOLUME}) if "PersistentVolume" in o["kind"]
    ]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    marks = []
    for url in ("s3://one/a", "s3://two/a"):
        [found] = [
            o for o in objects({"store": {"url": url}}) if o["kind"] == "DaemonSet"
        ]
        marks.append(found["spec"]["template"]["metadata"]["annotations"])
    assert marks[0] != marks[1]


@helm.needed
def test_the_pod_of_helm_test_calls_a_command_that_there_is(capsys):
    made = [one for one in rendered(LEAST) if is_test(one)]
    [pod] = [one["spec"] for one in made if one["kind"] == "Pod"]
    [container] = pod["containers"]
    # the files are in the pod alone: it has come as far as to look for them
    assert main([*container["command"][1:], *container["args"]]) == 1
    assert "There is no file /etc/gpu-reclaim/tls/ca.crt." in capsys.readouterr().err
    [service] = [one for one in made if one["kind"] == "Service"]
    assert f"--at={service['metadata']['name']}" in container["args"]
    agents, running = agent({})
    assert f"--port={running['ports'][0]['containerPort']}" in container["args"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"]}
    theirs = {v["name"]: v.get("secret") for v in agents["volumes"]}
    assert {name: theirs[name]["secretName"] for name in secrets} == secrets
    [authority] = [v["secret"] for v in pod["volumes"] if v["name"] == "tls"]
    assert [item["key"] for item in authority["items"]] == ["ca.crt"]
    app = AgentApp()
    app.parse_command_line(
        [word for word in running["args"] if "STORE_URL" not in word]
    )
    assert app.placement == "kubernetes"
