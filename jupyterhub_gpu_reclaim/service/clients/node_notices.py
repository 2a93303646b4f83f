"""Reads a cluster's notices of a node that is about to go: taints, condition, cordon.

Clouds and autoscalers each have a signal of their own, and documented it; the table has
them with the shortest time that is promised after each. Pure.

* GKE: *Manage GKE node disruption for GPUs and TPUs* (cloud.google.com)
* AWS: ``TAINT_NODE`` in the README of ``aws-node-termination-handler``; two minutes for
  a spot instance. Without that option it cordons the node.
* AKS: *Node auto-drain* (learn.microsoft.com); 30 seconds for a spot instance
* Karpenter, cluster autoscaler: their taints before they delete a node
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.drain import NodeNotice

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.service.clients.pods import ClusterNode

#: Kinds of notices that may be heeded.
KINDS = ("notice", "cordon")

_AWS = "aws-node-termination-handler/"
#: Taints, with seconds until the node may be gone; None: that is not promised.
TAINTS: dict[str, float | None] = {
    "cloud.google.com/impending-node-termination": 30.0,
    f"{_AWS}spot-itn": 120.0,
    f"{_AWS}asg-lifecycle-termination": None,
    f"{_AWS}scheduled-maintenance": None,
    "remediator.kubernetes.azure.com/unschedulable": 30.0,
    "karpenter.sh/disrupted": None,
    "ToBeDeletedByClusterAutoscaler": None,
}
#: AKS' condition, true from the announcement of an event on; the word for an event in
#: its message that has no effect on a session; and the seconds that are left after it.
EVENT = "VMEventScheduled"
_HARMLESS = "freeze"
_EVENT_SECONDS = 30.0


def notice_of(node: ClusterNode, kinds: Collection[str]) -> NodeNotice | None:
    """The most urgent notice of a node; None: there is none."""
    found: list[NodeNotice] = []
    name = node.metadata.name
    if "notice" in kinds:
        keys = [taint.key for taint in node.spec.taints or () if taint.key in TAINTS]
        found += [NodeNotice(name, f"taint {key}", TAINTS[key]) for key in keys]
        for condition in node.status.conditions or ():
            text = f"{condition.reason or ''} {condition.message or ''}".strip()
            harmless = _HARMLESS in text.lower()
            if condition.type == EVENT and condition.status == "True" and not harmless:
                why = text[:200] or EVENT
                found.append(NodeNotice(name, why, _EVENT_SECONDS))
    if "cordon" in kinds and node.spec.unschedulable:
        found.append(NodeNotice(name, "cordoned"))
    return min(found, key=_seconds_left, default=None)


def _seconds_left(notice: NodeNotice) -> float:
    return math.inf if notice.seconds is None else notice.seconds
