"""The pod of a session: what is changed, what stays, and what is refused."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubespawner.objects import make_pod

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Identity, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.kube.pod import (
    INCARNATION,
    holds,
    other_image,
    prepared,
    saved_image,
)
from jupyterhub_gpu_reclaim.hub.spawner.placement import Purpose
from jupyterhub_gpu_reclaim.session_init import command_line, session_init
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments
from tests.kube.schemas import as_json, problems

ADA = SessionKey("ada")
CMD = ["jupyterhub-singleuser", "--ip=0.0.0.0"]
SUM = "sha256:" + "a" * 64
DIGEST = f"quay.io/jupyter/base@{SUM}"


def a_pod(**more):
    given = {
        "name": "jupyter-ada",
        "cmd": list(CMD),
        "port": 8888,
        "image": "quay.io/jupyter/base:latest",
        "image_pull_policy": "IfNotPresent",
        "env": {"JUPYTERHUB_API_TOKEN": "fresh", "HOME": "/home/jovyan"},
        "labels": {"component": "singleuser-server"},
        "annotations": {"hub.jupyter.org/username": "ada"},
        "logger": logging.getLogger(),
        **more,
    }
    return make_pod(**given)


def a_purpose(mode="start", key=ADA, incarnation="f" * 32, **saved):
    held = mode == "hold"
    init = InitArguments(incarnation, key.user, key.server, "", holding=held)
    login = Identity(**{"api_token": "saved", "port": 1, **saved})
    return Purpose(init=init, saved=login if held else None)


def notebook(pod):
    return next(
        c for c in as_json(pod)["spec"]["containers"] if c["name"] == "notebook"
    )


def expanded(word: str) -> str:
    """A word as the kubelet hands it on, where no variable has that name."""
    return word.replace("$$", "$")


def variables(container) -> dict[str, str | None]:
    return {
        each["name"]: expanded(each["value"]) if each.get("value") else None
        for each in container["env"]
    }


def init_of(container, words: list[str]):
    """The command line as the session's init reads it, whose text is a variable."""
    assert tuple(map(expanded, words[:3])) == command_line.inline("python3")
    assert command_line.inline_environment().items() <= variables(container).items()
    return session_init.parse([expanded(word) for word in words[3:]])


def test_start_prefixes_the_arguments_and_leaves_the_entrypoint() -> None:
    container = notebook(prepared(a_pod(), a_purpose()))
    assert "command" not in container
    init = init_of(container, container["args"])
    assert (init.holding, init.user, init.incarnation) == (False, "ada", "f" * 32)
    assert init.command == CMD
    assert init.relay


def test_start_with_a_command_prefixes_that_and_leaves_the_arguments() -> None:
    pod = a_pod(extra_container_config={"command": ["tini", "--", "start.sh"]})
    container = notebook(prepared(pod, a_purpose()))
    words = container["command"]
    assert init_of(container, words).command == ["tini", "--", "start.sh"]
    assert container["args"] == CMD


@pytest.mark.parametrize("name", ["gvisor", "runsc", "kata", "kata-vm-isolation"])
@pytest.mark.parametrize("mode", ["start", "hold"])
def test_a_sandbox_that_hides_its_processes_from_the_node_is_refused(name, mode):
    pod = a_pod(extra_pod_config={"runtimeClassName": name})
    with pytest.raises(Refused, match=f"runtime class {name} hides") as refused:
        prepared(pod, a_purpose(mode))
    assert refused.value.reason is Reason.PLACE_UNSUITABLE


@pytest.mark.parametrize("name", ["nvidia", "runc", "katalog", ""])
def test_other_runtime_classes_are_taken(name):
    pod = a_pod(extra_pod_config={"runtimeClassName": name} if name else {})
    assert prepared(pod, a_purpose()).spec.runtime_class_name == (name or None)


def test_start_without_any_command_is_refused_with_what_to_set() -> None:
    with pytest.raises(Refused, match=r"KubeSpawner\.cmd"):
        prepared(a_pod(cmd=None), a_purpose())


def test_hold_is_pid_1_by_digest_with_the_saved_login(monkeypatch) -> None:
    monkeypatch.setattr(session_init.os, "getpid", lambda: 1)
    purpose = a_purpose("hold", image=DIGEST)
    container = notebook(prepared(a_pod(image_pull_policy="Always"), purpose))
    assert init_of(container, container["command"]).holding
    assert not container.get("args")
    assert (container["image"], container["imagePullPolicy"]) == (
        DIGEST,
        "IfNotPresent",
    )
    assert variables(container) == {
        "JUPYTERHUB_API_TOKEN": "saved",
        "HOME": "/home/jovyan",
        **command_line.inline_environment(),
    }


def test_an_image_without_a_digest_stays_for_the_agent_to_compare() -> None:
    purpose = a_purpose("hold", image="sha256:" + "b" * 64)
    assert (
        notebook(prepared(a_pod(), purpose))["image"] == "quay.io/jupyter/base:latest"
    )


@pytest.mark.parametrize(
    ("named", "tells"), [("base:1", True), ("base:2", False), ("", False)]
)
def test_another_image_than_the_chosen_one_is_told(named, tells) -> None:
    words = other_image("base:2", named)
    assert ("base:1, and not in base:2" in words) is tells


def test_probes_and_hooks_that_a_stopped_tree_cannot_answer_go() -> None:
    probe = {"httpGet": {"path": "/", "port": 8888}}
    extra = {"livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe}
    hooks = {
        "postStart": {"exec": {"command": ["true"]}},
        "preStop": {"exec": {"command": ["true"]}},
    }
    pod = a_pod(extra_container_config=extra, lifecycle_hooks=hooks)
    start, hold = prepared(pod, a_purpose()), prepared(pod, a_purpose("hold"))
    assert "livenessProbe" not in notebook(start)
    assert {"readinessProbe", "startupProbe"} <= notebook(start).keys()
    assert set(notebook(start)["lifecycle"]) == {"postStart", "preStop"}
    assert not {name for name in notebook(hold) if name.endswith("Probe")}
    assert set(notebook(hold)["lifecycle"]) == {"preStop"}


def test_what_an_administrator_wrote_as_json_is_understood() -> None:
    extra = {
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
        "env": [
            {"name": "JUPYTERHUB_API_TOKEN", "value": "fresh"},
            {"name": command_line.INLINE_VARIABLE, "value": "another's"},
            {"name": "A"},
        ],
    }
    for options in ({"extra_container_config": extra}, {"lifecycle_hooks": {}}):
        held = notebook(prepared(a_pod(**options), a_purpose("hold")))
        assert not held.get("lifecycle")
        env = variables(held)
        assert env["JUPYTERHUB_API_TOKEN"] == "saved"
        assert command_line.inline_environment().items() <= env.items()
        assert len(env) == len(held["env"])


def test_the_node_of_a_return_is_of_the_same_kind() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    pod = a_pod(node_selector={"pool": "gpu"})
    held = prepared(pod, a_purpose("hold", node_labels=labels))
    assert as_json(held)["spec"]["nodeSelector"] == {"pool": "gpu", **labels}
    assert as_json(pod)["spec"]["nodeSelector"] == {"pool": "gpu"}


def test_a_profile_for_another_gpu_is_refused_with_both_names() -> None:
    pod = a_pod(node_selector={"nvidia.com/gpu.product": "NVIDIA-L4"})
    purpose = a_purpose("hold", node_labels={"nvidia.com/gpu.product": "NVIDIA-H200"})
    with pytest.raises(Refused) as refused:
        prepared(pod, purpose)
    assert refused.value.reason is Reason.NODE_MISMATCH
    assert "NVIDIA-H200" in refused.value.message
    assert "NVIDIA-L4" in refused.value.message


def test_shared_process_namespace_is_refused() -> None:
    pod = a_pod(extra_pod_config={"shareProcessNamespace": True})
    with pytest.raises(Refused, match="shareProcessNamespace"):
        prepared(pod, a_purpose())


def test_a_hook_that_takes_the_init_out_is_noticed() -> None:
    for mode in ("start", "hold"):
        purpose = a_purpose(mode)
        pod = prepared(a_pod(), purpose)
        assert holds(pod, purpose)
        pod.spec.containers[0].command, pod.spec.containers[0].args = None, CMD
        assert not holds(pod, purpose)
    assert not holds(prepared(a_pod(), a_purpose()), a_purpose(incarnation="e" * 32))


@pytest.mark.parametrize("mode", ["start", "hold"])
def test_a_hook_that_takes_only_the_text_of_the_init_out_is_refused(mode) -> None:
    """Nothing would run in that pod."""
    purpose = a_purpose(mode)
    pod = prepared(a_pod(), purpose)
    pod.spec.containers[0].env = None
    with pytest.raises(Refused, match=command_line.INLINE_VARIABLE) as refused:
        holds(pod, purpose)
    assert refused.value.reason is Reason.PLACE_UNSUITABLE


def test_sidecars_and_init_containers_stay_as_they_are() -> None:
    side = {
        "name": "side",
        "image": "busybox",
        "livenessProbe": {"tcpSocket": {"port": 1}},
    }
    first = {"name": "first", "image": "busybox", "command": ["true"]}
    pod = a_pod(extra_containers=[side], init_containers=[first])
    spec = as_json(prepared(pod, a_purpose("hold")))["spec"]
    before = as_json(pod)["spec"]
    assert spec["initContainers"] == before["initContainers"]
    assert spec["containers"][1] == before["containers"][1]
    assert spec["restartPolicy"] == "Never"


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=30,
)


@settings(max_examples=15)
@given(
    user=names,
    server=st.one_of(st.just(""), names),
    mode=st.sampled_from(["start", "hold"]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "uid": st.just(1000),
            "fs_gid": st.just(100),
            "extra_resource_limits": st.just({"nvidia.com/gpu": "1"}),
            "extra_container_config": st.just({"command": ["start.sh"]}),
            "extra_containers": st.just([{"name": "side", "image": "busybox"}]),
            "volumes": st.just(
                [{"name": "home", "persistentVolumeClaim": {"claimName": "home"}}]
            ),
            "volume_mounts": st.just([{"name": "home", "mountPath": "/home/jovyan"}]),
            "node_selector": st.just({"pool": "gpu"}),
        },
    ),
)
def test_any_pod_stays_valid_and_itself(user, server, mode, options) -> None:
    pod = a_pod(**options)
    before = as_json(pod)
    purpose = a_purpose(mode, key=SessionKey(user, server), image=DIGEST)
    made = prepared(pod, purpose)
    assert as_json(pod) == before
    assert holds(made, purpose)
    after = as_json(made)
    assert problems(after) == []
    assert after["metadata"]["labels"][INCARNATION] == purpose.init.incarnation
    ours = notebook(made)
    words = [*ours.get("command", ()), *ours.get("args", ())]
    assert command_line.written(purpose.init) in map(expanded, words)
    for name in ("resources", "volumeMounts", "securityContext", "ports"):
        assert ours.get(name) == notebook(pod).get(name)


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ("", DIGEST),
        ("quay.io/jupyter/base:latest", DIGEST),
        ("registry.lab:5000/gpu/base:2", f"registry.lab:5000/gpu/base@{SUM}"),
        ("jupyter/base", f"jupyter/base@{SUM}"),
        ("lab/base:1@sha256:" + "b" * 64, f"lab/base@{SUM}"),
    ],
)
def test_a_return_asks_the_named_repository_for_what_was_saved(named, asked):
    assert saved_image(DIGEST, named) == asked
    assert saved_image("sha256:" + "c" * 64, named) == "sha256:" + "c" * 64


@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            "extra_pod_config": {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": []
                    }
                }
            }
        },
        {
            "node_affinity_preferred": [
                {"weight": 1, "preference": {"matchExpressions": []}}
            ]
        },
        {
            "pod_affinity_preferred": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
            ]
        },
    ],
)
def test_hold_prefers_other_nodes_than_those_that_sent_it_away(given) -> None:
    before = as_json(a_pod(**given))
    pod = a_pod(**given)
    held = as_json(prepared(pod, a_purpose("hold"), avoid=("one", "two")))
    rules = held["spec"]["affinity"]["nodeAffinity"]
    last = rules["preferredDuringSchedulingIgnoredDuringExecution"][-1]
    assert [field["values"] for field in last["preference"]["matchFields"]] == [
        ["one"],
        ["two"],
    ]
    assert problems(held) == []
    assert as_json(pod) == before
