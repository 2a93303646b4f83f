"""Tells what a pod waits for, or why it does not run, in Kubernetes' words. Pure.

The place in the queue counts the sessions that asked for a GPU earlier; the scheduler
may take them in another order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.service.clients.pods import CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.service.clients.pods import Pod

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


def sentence(pod: Pod | None, all_pods: Iterable[Pod]) -> str:
    """What the pod waits for; empty: nothing worth mentioning."""
    if pod is None:
        return ""
    if pod.ending:
        return f"Waiting: {obstacle(pod)}"
    if pod.status.phase not in {"Pending", "Failed"}:
        return ""
    if pod.unscheduled is not None:
        return _queue(pod, all_pods)
    return obstacle(pod)


def obstacle(pod: Pod | None) -> str:
    """Why the pod does not run; empty if Kubernetes does not say."""
    if pod is None:
        return "its pod does not exist"
    if pod.ending:
        return f"its former pod on {pod.node or 'its node'} has not ended yet"
    for container in pod.status.container_statuses or ():
        state = container.state or {}
        waiting = state.get("waiting") or {}
        ended = state.get("terminated") if container.name == CONTAINER else None
        if ended or waiting.get("reason") in _STUCK:
            told = ended or waiting
            return _words(told.get("reason"), told.get("message"))
    return _words(pod.status.reason, pod.status.message) or pod.unscheduled or ""


def rejection(pod: Pod) -> str:
    """Why the kubelet rejected the pod before it ran; empty if it did not.

    Its node had no room for it after all (``OutOfcpu``, ``OutOfnvidia.com/gpu``), a
    device or label was gone (``UnexpectedAdmissionError``, ``NodeAffinity``), or the
    node is being shut down: usual after a restart of a node.
    """
    status = pod.status
    ran = any(
        "running" in state or "terminated" in state
        for container in status.container_statuses or ()
        if (state := container.state or {})
    )
    if ran or status.phase != "Failed" or not status.reason:
        return ""
    return _words(status.reason, status.message)


def _words(reason: str | None, message: str | None) -> str:
    words = ": ".join(filter(None, [reason, message]))
    return words.strip().rstrip(".")[:_MAX_WORDS]


def without_ended(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's JSON without the containers beside the session's that have ended."""
    status = dict(pod.get("status") or {})
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


def _queue(pod: Pod, all_pods: Iterable[Pod]) -> str:
    if not pod.wants_gpu:
        return f"Waiting for a free machine ({pod.unscheduled})"
    others = [
        _queue_order(each)
        for each in all_pods
        if each.wants_gpu and each.unscheduled is not None
    ]
    place = sum(turn < _queue_order(pod) for turn in others) + 1
    total = max(len(others), place)
    return (
        f"Waiting for a free GPU: number {place} of {total} in the queue"
        f" ({pod.unscheduled})"
    )


def _queue_order(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.uid
