"""Reads from a pod's JSON whether it lives, and what it waits for. Pure.

The place in the queue counts the sessions that asked for a GPU earlier; the scheduler
may take them in another order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.service.clients.pods import CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Most characters of a refusal that people are shown: webhooks say what they like.
_MAX_WORDS = 500
#: Reasons why a container does not start where waiting alone does not help.
_STUCK = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}


def sentence(
    pod: Mapping[str, Any] | None, all_pods: Iterable[Mapping[str, Any]]
) -> str:
    """What the pod waits for; empty: nothing worth mentioning."""
    if pod is None:
        return ""
    if _ending(pod):
        return f"Waiting: {obstacle(pod)}"
    if _status(pod).get("phase") not in {"Pending", "Failed"}:
        return ""
    if unscheduled(pod) is not None:
        return _queue(pod, all_pods)
    return obstacle(pod)


def obstacle(pod: Mapping[str, Any] | None) -> str:
    """Why the pod does not run, in Kubernetes' words; empty if it does not say."""
    if pod is None:
        return "its pod does not exist"
    if _ending(pod):
        node = pod["spec"].get("nodeName") or "its node"
        return f"its former pod on {node} has not ended yet"
    for container in _status(pod).get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        ended = state.get("terminated") if container["name"] == CONTAINER else None
        if ended or waiting.get("reason") in _STUCK:
            return _words(ended or waiting)
    return _words(_status(pod)) or unscheduled(pod) or ""


def rejection(pod: Mapping[str, Any]) -> str:
    """Why the kubelet rejected the pod before it ran; empty if it did not.

    Its node had no room for it after all (``OutOfcpu``, ``OutOfnvidia.com/gpu``), a
    device or label was gone (``UnexpectedAdmissionError``, ``NodeAffinity``), or the
    node is being shut down: usual after a restart of a node.
    """
    status = _status(pod)
    ran = any(
        "running" in state or "terminated" in state
        for container in status.get("containerStatuses") or ()
        if (state := container.get("state") or {})
    )
    if ran or status.get("phase") != "Failed" or not status.get("reason"):
        return ""
    return _words(status)


def _words(told: Mapping[str, Any]) -> str:
    words = [str(told.get("reason") or ""), str(told.get("message") or "")]
    return ": ".join(filter(None, words)).strip().rstrip(".")[:_MAX_WORDS]


def without_ended(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod without the containers beside the session's that have ended."""
    status = dict(_status(pod))
    status["containerStatuses"] = [
        container
        for container in status.get("containerStatuses") or ()
        if container["name"] == CONTAINER
        or "terminated" not in (container.get("state") or {})
    ]
    return {**pod, "status": status}


def refusal(body: str | bytes | None) -> str:
    try:
        status = json.loads(body or "")
        words = str(status["message"])
    except (ValueError, KeyError, TypeError):
        words = "it does not say why"
    return words.strip().rstrip(".")[:_MAX_WORDS] or "it does not say why"


def is_quota(words: str) -> bool:
    """Whether a quota is used up, which others may give back (Kubernetes' words)."""
    return "exceeded quota" in words


def unscheduled(pod: Mapping[str, Any]) -> str | None:
    """The scheduler's words while no node takes the pod; None: one does, or may."""
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            if condition.get("reason") != "Unschedulable":
                return None
            return condition.get("message") or "no node takes it"
    return None


def _queue(pod: Mapping[str, Any], all_pods: Iterable[Mapping[str, Any]]) -> str:
    why = unscheduled(pod)
    if not gpus(pod):
        return f"Waiting for a free machine ({why})"
    others = sorted(
        _queue_order(each)
        for each in all_pods
        if gpus(each) and unscheduled(each) is not None
    )
    place = sum(turn < _queue_order(pod) for turn in others) + 1
    total = max(len(others), place)
    return f"Waiting for a free GPU: number {place} of {total} in the queue ({why})"


def _queue_order(pod: Mapping[str, Any]) -> tuple[str, str]:
    metadata = pod["metadata"]
    return metadata.get("creationTimestamp") or "", metadata.get("uid") or ""


def gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod asks for a GPU of any make (``nvidia.com/gpu``, MIG, a claim)."""
    return bool(pod["spec"].get("resourceClaims")) or any(
        "/gpu" in name or "/mig-" in name
        for container in pod["spec"]["containers"]
        for name in (container.get("resources") or {}).get("limits") or {}
    )


def _ending(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod.get("status") or {}


def notebook(pod: Mapping[str, Any] | None) -> dict[str, Any]:
    for container in pod["spec"]["containers"] if pod else ():
        if container["name"] == CONTAINER:
            return dict(container)
    return {}


def lives(pod: Mapping[str, Any] | None, uid: str) -> bool:
    """Whether this is that pod (empty: any) and its container has not ended."""
    if pod is None or (uid and pod["metadata"]["uid"] != uid):
        return False
    if pod["status"].get("phase") in {"Succeeded", "Failed"}:
        return False
    for status in pod["status"].get("containerStatuses") or ():
        if status["name"] == CONTAINER:
            return "terminated" not in (status.get("state") or {})
    return True
