"""What the API server tells of pods, in sentences."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.hub.kube.pod_events import obstacle, sentence
from jupyterhub_gpu_reclaim.service.clients.pods import Pod

GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def pod(uid="u1", *, created="1", gpu=True, phase="Pending", ending=None, **status):
    told = {
        "metadata": {
            "uid": uid,
            "creationTimestamp": created,
            "deletionTimestamp": ending,
        },
        "spec": {
            "nodeName": "gpu-7",
            "containers": [{"name": "notebook", **(GPU if gpu else {})}],
        },
        "status": {"phase": phase, **status},
    }
    return msgspec.convert(told, Pod)


def waits(uid, created, *, gpu=True):
    told = {"type": "PodScheduled", "reason": "Unschedulable", "message": "Too few."}
    return pod(uid, created=created, gpu=gpu, conditions=[told])


def container(**state):
    return {"containerStatuses": [{"name": "notebook", "state": state}]}


def test_the_place_counts_those_who_came_earlier_and_want_a_gpu():
    queue = [
        waits("a", "1"),
        waits("b", "2"),
        waits("c", "2"),
        waits("d", "0", gpu=False),
    ]
    places = [sentence(each, queue) for each in queue[:3]]
    assert [
        words[words.index("number") : words.index(" in the")] for words in places
    ] == ["number 1 of 3", "number 2 of 3", "number 3 of 3"]
    assert sentence(queue[3], queue) == "Waiting for a free machine (Too few.)"


def test_a_pod_that_is_not_in_the_list_yet_counts_itself():
    assert "number 1 of 1" in sentence(waits("a", "1"), [])


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_nothing_is_said_of_a_pod_that_runs(phase):
    assert sentence(pod(phase=phase), []) == ""
    assert sentence(None, []) == ""


def test_an_image_that_cannot_be_pulled_is_said():
    status = container(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})
    assert sentence(pod(**status), []) == "ImagePullBackOff: Back-off"
    creating = container(waiting={"reason": "ContainerCreating"})
    assert sentence(pod(**creating), []) == ""


def test_a_former_pod_on_a_lost_node_is_named():
    old = pod(phase="Running", ending="now")
    assert "gpu-7" in sentence(old, [])
    assert "gpu-7" in obstacle(old)


@pytest.mark.parametrize(
    ("status", "over"),
    [
        ({}, False),
        ({"phase": "Failed"}, True),
        ({"phase": "Running", **container(running={})}, False),
        ({"phase": "Running", **container(terminated={"exitCode": 137})}, True),
        ({"phase": "Running", **container()}, False),
    ],
)
def test_a_pod_lives_until_its_container_is_reported_dead(status, over):
    assert pod(**status).over is over
