"""What a cluster says of a node that is about to go, and that it is heeded."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.drain import NodeNotice
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.agent_router import AgentRouter
from jupyterhub_gpu_reclaim.service.clients.node_notices import KINDS, TAINTS, notice_of
from jupyterhub_gpu_reclaim.service.clients.pods import INCARNATION, ClusterNode
from tests.kube.conftest import session_pod

EVENT = {
    "type": "VMEventScheduled",
    "status": "True",
    "reason": "VMEventScheduled",
    "message": "Preempt Scheduled: Fri, 27 Nov 2026 14:02:00 GMT",
}


def node(**fields) -> ClusterNode:
    return msgspec.convert({"metadata": {"name": "n1"}, **fields}, ClusterNode)


def tainted(*keys: str, **more) -> ClusterNode:
    taints = [{"key": key, "effect": "NoSchedule", "value": "x"} for key in keys]
    return node(spec={"taints": taints, **more})


@pytest.mark.parametrize(("key", "seconds"), TAINTS.items())
def test_taint_of_a_cloud_or_autoscaler_is_a_notice(key, seconds):
    assert notice_of(tainted("other", key), KINDS) == NodeNotice(
        "n1", f"taint {key}", seconds
    )
    assert notice_of(tainted(key), ["cordon"]) is None


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/unschedulable",
        "nvidia.com/gpu",
        "DeletionCandidateOfClusterAutoscaler",
        "aws-node-termination-handler/rebalance-recommendation",
    ],
)
def test_other_taints_are_none(key):
    assert notice_of(tainted(key), KINDS) is None


def test_cordon_counts_where_it_is_to():
    cordoned = node(spec={"unschedulable": True})
    assert notice_of(cordoned, ["notice", "cordon"]) == NodeNotice("n1", "cordoned")
    assert notice_of(cordoned, ["notice"]) is None


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({}, True),
        ({"status": "False"}, False),
        ({"status": "Unknown"}, False),
        ({"message": "Freeze Scheduled: Fri, 27 Nov 2026 14:02:00 GMT"}, False),
        ({"message": "Reboot Scheduled: Fri, 27 Nov 2026 14:02:00 GMT"}, True),
        ({"message": None}, True),
        ({"type": "Ready"}, False),
    ],
)
def test_announced_event_of_an_azure_machine_is_a_notice(change, is_one):
    found = notice_of(node(status={"conditions": [{**EVENT, **change}]}), KINDS)
    assert (found is not None) is is_one
    assert found is None or found.seconds == 30.0


def test_most_urgent_notice_counts():
    spot = "aws-node-termination-handler/spot-itn"
    found = notice_of(
        tainted("karpenter.sh/disrupted", spot, unschedulable=True), KINDS
    )
    assert found == NodeNotice("n1", f"taint {spot}", 120.0)


# --- of a cluster


def router(service, *kinds: str) -> AgentRouter:
    fleet = service.fleet
    return AgentRouter(
        service.api, sessions=fleet._sessions, agents=fleet._agents, heeds=kinds
    )


async def test_nodes_with_an_agent_are_looked_at(cluster, service):
    watched = router(service, *KINDS)
    await service.knows(lambda pods: len(service.fleet.nodes()) == 2)
    assert await watched.node_notices() == []
    (two,) = (
        thing for (_, name), thing in cluster.objects["nodes"].items() if name == "two"
    )
    cluster.put("nodes", {**two, "spec": {"unschedulable": True}})
    assert await watched.node_notices() == [NodeNotice("two", "cordoned")]
    assert await router(service).node_notices() == []
    cluster.drop("nodes", two)
    assert await watched.node_notices() == []


async def test_server_that_does_not_say_gives_no_word(cluster, service):
    watched = router(service, *KINDS)
    await service.knows(lambda pods: len(service.fleet.nodes()) == 2)
    cluster.forbidden.add(("get", "nodes"))
    with pytest.raises(ReclaimError):
        await watched.node_notices()


async def test_nothing_is_taken_back_while_it_is_not_known_which_nodes_there_are(
    service, monkeypatch
):
    watched = router(service, *KINDS)
    await service.knows(lambda pods: len(service.fleet.nodes()) == 2)

    def unknown():
        raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail="not listed yet")

    monkeypatch.setattr(service.fleet._agents._pods, "now", unknown)
    with pytest.raises(ReclaimError):
        await watched.node_notices()


async def test_notice_stands_while_the_nodes_agent_is_replaced(
    cluster, service, monkeypatch
):
    watched = router(service, *KINDS)
    await service.knows(lambda pods: len(service.fleet.nodes()) == 2)
    (two,) = (
        thing for (_, name), thing in cluster.objects["nodes"].items() if name == "two"
    )
    cluster.put("nodes", {**two, "spec": {"unschedulable": True}})
    stands = [NodeNotice("two", "cordoned")]
    assert await watched.node_notices() == stands
    monkeypatch.setattr(service.fleet._agents._pods, "now", list)
    assert await watched.node_notices() == stands
    cluster.drop("nodes", two)
    assert await watched.node_notices() == []


async def test_a_pod_that_is_removed_by_force_was_not_ended_by_its_session(
    cluster, service
):
    """As the pods of a node that is said to be out of service."""
    pod = session_pod(cluster)
    await service.knows(lambda pods: pods and pods[0].node)
    cluster.drop("pods", pod)
    await service.knows(lambda pods: pods == [])
    assert await service.fleet.trees() == []
    ended = service.fleet.ending(pod["metadata"]["labels"][INCARNATION])
    assert ended.code == "session_disrupted"
