"""The agents of a cluster as one: orders to their node, and what nobody answers."""

import asyncio

import msgspec
import pytest
from traitlets.config import Config

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    ReclaimError,
    Refused,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import SessionKey, TreeState
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.app import ReclaimService
from jupyterhub_gpu_reclaim.service.clients.pods import INCARNATION, Pod
from jupyterhub_gpu_reclaim.service.settings.placement import agent_of
from tests.kube.conftest import ADA, MODEL, service_of, session_pod, until
from tests.support.cluster import NAMESPACE
from tests.support.cluster_rules import RULES
from tests.support.nodes import AGENT_PORT, TOKEN, agents_certificate

BOB = SessionKey("bob", "lab")
GPU = {"extra_resource_limits": {"nvidia.com/gpu": "1"}}
I1, I2, I3 = "a" * 32, "b" * 32, "c" * 32


async def all_of(events):
    return [event async for event in events]


def node_of(cluster, pod):
    return next(n for n in cluster.nodes if n.name == pod["spec"]["nodeName"])


@pytest.fixture
async def two(cluster, service):
    """Ada's session on one node, Bob's on the other."""
    ada = session_pod(cluster, options=GPU)
    bob = session_pod(cluster, BOB, incarnation=I2)
    assert ada["spec"]["nodeName"] != bob["spec"]["nodeName"]
    await service.knows(lambda pods: len(pods) == 2 and all(p.image for p in pods))
    return ada, bob


async def test_trees_are_asked_of_every_node_and_bear_the_keys_of_their_pods(
    cluster, service, two
):
    trees = await service.fleet.trees()
    assert {(t.key, t.incarnation, t.state) for t in trees} == {
        (ADA, I1, TreeState.RUNNING),
        (BOB, I2, TreeState.RUNNING),
    }
    assert {t.key: t.node for t in trees} == {
        ADA: cluster.pod("jupyter-ada")["spec"]["nodeName"],
        BOB: cluster.pod("jupyter-bob--lab")["spec"]["nodeName"],
    }
    assert {s.key for s in await service.fleet.samples()} == {ADA, BOB}
    assert (await service.fleet.tree(I2)).key == BOB


async def test_nodes_are_those_with_an_agent_or_a_gpu_that_a_session_holds(
    cluster, service, two
):
    names = sorted(node.name for node in cluster.nodes)
    assert service.fleet.nodes() == names
    assert (await service.fleet.status(names[0])).host == names[0]
    with pytest.raises(Unreachable) as caught:
        await service.fleet.status("gone")
    assert caught.value.reason is Reason.NODE_SILENT


async def test_what_a_pod_claims_to_be_is_not_believed(cluster, service, two):
    bob = node_of(cluster, two[1])
    # Bob's pod says that it is Ada's.
    bob.simulated.run(ADA, "forged", I1, pod=two[1]["metadata"]["uid"])
    assert [t.pod for t in await service.fleet.trees(ADA)] == [
        two[0]["metadata"]["uid"]
    ]
    assert len(await service.fleet.samples()) == 2


async def test_capture_tells_the_agent_what_the_return_needs(cluster, service, two):
    events = await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    assert events[-1].checkpoint.id == "c1"
    identity = await service.fleet.identity("c1")
    assert "@sha256:" in identity.image
    assert identity.node_labels == {MODEL: "NVIDIA-H200"}
    told = node_of(cluster, two[0]).agent.placements._hints[I1]
    assert (told.key, told.pod) == (ADA, two[0]["metadata"]["uid"])


async def test_nap_and_wake_go_to_the_agent_of_its_node(cluster, service, two):
    tree = node_of(cluster, two[0]).places[I1].tree
    tree.gpu_bytes, tree.on_gpu = 5, True
    assert (await all_of(service.fleet.follow(I1, orders.Nap())))[
        -1
    ].tree.state is TreeState.NAPPING
    assert not tree.on_gpu
    (told,) = await service.fleet.trees(ADA)
    assert (told.runs, told.nap.bytes) == (True, 5)
    assert {s.key for s in await service.fleet.samples()} == {ADA, BOB}
    agent, follows = node_of(cluster, two[0]).agent, asyncio.Event()
    follow = agent.next_wake

    async def next_wake(incarnation, order):
        follows.set()
        return await follow(incarnation, order)

    agent.next_wake = next_wake
    following = asyncio.ensure_future(
        all_of(service.fleet.follow(I1, orders.NextWake()))
    )
    await asyncio.wait_for(follows.wait(), 60)  # a wake that is over is not followed
    assert (await all_of(service.fleet.follow(I1, orders.Wake())))[
        -1
    ].tree.state is TreeState.RUNNING
    assert tree.on_gpu
    followed = await asyncio.wait_for(following, 60)
    assert followed[-1].tree.state is TreeState.RUNNING
    with pytest.raises(NotFound):
        await all_of(service.fleet.follow("nobody", orders.Nap()))


async def test_labels_of_a_sessions_pod_are_told_and_of_none_are_not_known(
    service, two
):
    labels = service.fleet.labels(BOB)
    assert labels == two[1]["metadata"]["labels"]
    assert labels[INCARNATION] == I2
    assert service.fleet.labels(SessionKey("nobody")) is None


async def test_a_session_without_a_gpu_may_return_to_any_node(service, two):
    await all_of(service.fleet.follow(I2, orders.Capture("c2", 1)))
    assert (await service.fleet.identity("c2")).node_labels == {}


async def test_release_ends_the_tree_and_then_deletes_that_pod(cluster, service, two):
    await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    await service.fleet.order(I1, orders.Release("c1"))
    await until(lambda: cluster.pod("jupyter-ada") is None)
    assert cluster.pod("jupyter-bob--lab") is not None
    # The mirror may still show a pod that is gone; then release has nothing left to do.
    await service.knows(lambda pods: len(pods) == 1)
    with pytest.raises(NotFound):
        await service.fleet.order(I1, orders.Release("c1"))


async def test_restore_goes_to_the_node_where_the_pod_landed(cluster, service, two):
    await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    await service.fleet.order(I1, orders.Release("c1"))
    await until(lambda: cluster.pod("jupyter-ada") is None)
    node_of(cluster, two[0]).schedulable = False
    held = session_pod(cluster, mode="hold", incarnation=I3)
    assert held["spec"]["nodeName"] != two[0]["spec"]["nodeName"]
    events = await all_of(service.fleet.follow(I3, orders.Restore("c1")))
    assert events[-1].tree.state is TreeState.RUNNING
    assert node_of(cluster, held).serves(held["metadata"]["uid"])
    assert node_of(cluster, held).agent.placements._hints[I3].image.partition("@")[2]


async def test_a_silent_node_makes_its_own_sessions_unknown_and_no_others(
    cluster, service, two
):
    await node_of(cluster, two[0]).silence_agent()
    by_key = {tree.key: tree.state for tree in await service.fleet.trees()}
    assert by_key == {ADA: TreeState.UNKNOWN, BOB: TreeState.RUNNING}
    with pytest.raises(Unreachable) as silent:
        await service.fleet.trees(ADA)
    assert silent.value.reason is Reason.NODE_SILENT
    assert two[0]["spec"]["nodeName"] in silent.value.message
    assert len(await service.fleet.trees(BOB)) == 1
    assert [s.key for s in await service.fleet.samples()] == [BOB]


async def test_a_tree_in_a_pod_that_is_being_deleted_says_so(cluster, service, two):
    """Its node may be out of sight, and its kubelet ends it as soon as it is back."""
    cluster.delete_seconds = 60.0
    cluster.delete_pod(cluster.pod("jupyter-ada"), 30)
    await service.knows(lambda pods: any(pod.ending for pod in pods))
    trees = await service.fleet.trees()
    assert {tree.key: tree.ending for tree in trees} == {ADA: True, BOB: False}


async def test_a_silent_node_where_the_pod_is_being_deleted_is_told_as_such(
    cluster, service, two
):
    """What was suspended there may come back elsewhere; else it is not gone."""
    cluster.delete_seconds = 60.0
    await node_of(cluster, two[0]).silence_agent()
    cluster.delete_pod(cluster.pod("jupyter-ada"), 30)
    await service.knows(lambda pods: any(pod.ending for pod in pods))
    with pytest.raises(Unreachable) as silent:
        await service.fleet.trees(ADA)
    assert silent.value.reason is Reason.ENDING_UNSEEN
    assert two[0]["spec"]["nodeName"] in silent.value.message


async def test_a_look_at_one_session_does_not_wait_for_another_ones_silent_node(
    cluster, service, two, monkeypatch
):
    """What came in with that answer would be as old as the wait."""
    asked, on = [], service.fleet._agents.on

    def note(node):
        asked.append(node)
        return on(node)

    monkeypatch.setattr(service.fleet._agents, "on", note)
    assert [s.key for s in await service.fleet.samples(BOB)] == [BOB]
    assert asked == [two[1]["spec"]["nodeName"]]


async def test_the_store_is_asked_of_whoever_answers(cluster, service, two):
    await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    await node_of(cluster, two[0]).silence_agent()
    assert [info.id for info in await service.fleet.checkpoints()] == ["c1"]
    await service.fleet.order("c1", orders.Discard())
    assert await service.fleet.checkpoints() == []


async def test_what_a_session_came_from_is_deleted_where_it_is_seen_to_run(
    cluster, service, two
):
    await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    await service.fleet.order(I1, orders.Release("c1"))
    await node_of(cluster, two[1]).silence_agent()
    with pytest.raises(Unreachable):
        await service.fleet.order("c1", orders.Discard(runs=I2))
    with pytest.raises(NotFound):
        await service.fleet.order("c1", orders.Discard(runs="nobody"))
    assert [info.id for info in await service.fleet.checkpoints()] == ["c1"]


async def test_without_any_agent_nothing_is_known(cluster, service):
    for node in cluster.nodes:
        await node.stop_agent()
    await until(lambda: not service.agents.now())
    with pytest.raises(Unreachable) as nobody:
        await service.fleet.checkpoints()
    assert nobody.value.reason is Reason.NO_AGENT


async def test_an_agent_that_was_started_anew_is_found_at_its_new_address(
    cluster, service, two
):
    node = node_of(cluster, two[0])
    await node.stop_agent()
    with pytest.raises(Unreachable):
        await until(lambda: _raised(service.fleet.trees(ADA)))
    node.start_agent()
    await until(lambda: _answered(service.fleet.trees(ADA)))


async def _raised(call):
    try:
        await call
    except Unreachable as error:
        raise error from None
    return False


async def _answered(call):
    try:
        return await call
    except Unreachable:
        return None


async def test_a_pod_that_waits_is_no_tree_and_is_deleted_when_nobody_wants_it(
    cluster, service
):
    cluster.gpus = 0
    session_pod(cluster, mode="hold", options=GPU)
    assert await service.fleet.trees(ADA) == []
    with pytest.raises(NotFound):
        await service.fleet.tree(I1)
    await service.fleet.order(I1, orders.Kill())
    assert cluster.pod("jupyter-ada") is None


async def test_those_who_wait_for_a_gpu_are_known_in_their_order(cluster, service):
    cluster.gpus = 0
    session_pod(cluster, BOB, mode="hold", options=GPU)
    session_pod(cluster, incarnation=I2, options=GPU)
    cluster.pod("jupyter-ada")["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.put("pods", cluster.pod("jupyter-ada"))
    await service.knows(lambda pods: all(p.unscheduled for p in pods) and len(pods) > 1)
    waiting = service.fleet.waiting()
    assert [(each.key, each.gpus) for each in waiting] == [(ADA, 1), (BOB, 1)]
    assert waiting[0].since == 1767225600.0
    cluster.gpus = 8
    cluster.schedule_again()
    await until(lambda: service.fleet.waiting() == [])


async def test_kill_while_the_capture_runs_leaves_the_pod(cluster, service, two):
    node = node_of(cluster, two[0])
    node.nodes.held = "dump"
    capture = asyncio.create_task(
        all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    )
    await until(lambda: node.places[I1].tree.frozen)
    with pytest.raises(Refused):
        await service.fleet.order(I1, orders.Kill())
    assert "deletionTimestamp" not in cluster.pod("jupyter-ada")["metadata"]
    await service.fleet.order(I1, orders.Cancel())
    assert (await capture)[-1].failure.code == "cancelled"


async def test_the_node_may_not_be_read_and_the_session_is_saved_all_the_same(
    cluster, service, two
):
    cluster.forbidden.add(("get", "nodes"))
    await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    assert (await service.fleet.identity("c1")).node_labels == {}


async def test_a_pod_newer_than_the_watch_is_looked_up(cluster, service):
    cluster.forbidden.add(("watch", "pods"))
    cluster.cut_watches()
    await asyncio.sleep(0.1)
    session_pod(cluster)
    assert len(await service.fleet.trees(ADA)) == 1
    assert (await service.fleet.tree(I1)).state is TreeState.RUNNING


async def test_the_calls_are_those_of_the_role_and_no_others(cluster, service, two):
    await all_of(service.fleet.follow(I1, orders.Capture("c1", 1)))
    await service.fleet.order(I1, orders.Release("c1"))
    made = {(verb, where) for who, verb, where in cluster.calls if who == "service"}
    scopes = {"sessions": NAMESPACE, "agents": NAMESPACE, "cluster": ""}
    allowed = {
        (verb, f"{rule.resource}@{scopes[rule.scope]}")
        for rule in RULES
        for verb in rule.verbs
    }
    assert made == allowed


async def test_faults_of_the_server_end_in_a_true_picture(cluster, tmp_path):
    """Throttled, down, cut and too old at once: late, but never wrong."""
    cluster.throttled, cluster.down = 2, 1
    async with service_of(cluster, tmp_path) as service:
        with pytest.raises(ReclaimError):
            await service.fleet.trees()
        await service.knows(lambda pods: pods == [])
        session_pod(cluster)
        await service.knows(lambda pods: len(pods) == 1)
        cluster.cut_watches()
        await asyncio.sleep(0)
        session_pod(cluster, BOB, incarnation=I2)
        await service.knows(lambda pods: len(pods) == 2)
        cluster.forget_history()
        pod = cluster.pod("jupyter-ada")
        node_of(cluster, pod).end(pod)
        cluster.drop("pods", pod)
        await service.knows(lambda pods: [p.key for p in pods] == [BOB])


async def test_no_right_to_list_is_a_sentence(cluster, tmp_path):
    cluster.forbidden.add(("list", "pods"))
    async with service_of(cluster, tmp_path) as service:
        with pytest.raises(Unreachable) as refused:
            await service.sessions.fresh()
    assert refused.value.reason is Reason.CLUSTER_FORBIDS
    assert "list pods" in refused.value.message


async def test_the_fleet_that_the_settings_make_sees_the_sessions_of_all_nodes(
    cluster, two, tmp_path
):
    file = tmp_path / "kubeconfig"
    file.write_text(cluster.kubeconfig("service"))
    token = tmp_path / "agent.token"
    token.write_text(TOKEN)
    config = {
        "placement": "kubernetes",
        "kubeconfig": str(file),
        "namespace": NAMESPACE,
        "agent_token_file": str(token),
        "agent_port": AGENT_PORT,
        "agent_ca_file": str(agents_certificate()),
    }
    service = ReclaimService(config=Config(ReclaimService=config))
    fleet = await agent_of(service, None)

    async def seen():
        try:
            return {sample.key for sample in await fleet.samples()} == {ADA, BOB}
        except ReclaimError:
            return False

    try:
        await until(seen)
    finally:
        await fleet.stop()


async def _ended(cluster, service, end):
    """How the fleet says that Ada's pod ended, and whether before it was gone."""
    pod = session_pod(cluster)
    await service.knows(lambda pods: pods and all(p.image for p in pods))
    assert service.fleet.ending(I1) is None
    end(pod["metadata"]["name"])
    await until(lambda: cluster.pod("jupyter-ada") is None)
    return await until(lambda: service.fleet.ending(I1))


async def test_a_pod_that_is_drained_says_so_when_it_is_gone(cluster, service):
    end = await _ended(cluster, service, lambda name: cluster.evict(cluster.pod(name)))
    assert end.code == "session_disrupted"
    assert "EvictionByEvictionAPI: Eviction API: evicting" in end.message
    assert "pod on one " in end.message or "pod on two " in end.message


@pytest.mark.parametrize("grace", [30, 1])
async def test_a_pod_that_somebody_deletes_says_so_whatever_the_kubelet_adds(
    cluster, service, grace
):
    """The kubelet deletes it once more, a second after its containers' end."""
    end = await _ended(
        cluster, service, lambda name: cluster.delete_pod(cluster.pod(name), grace)
    )
    told = [
        (
            kind,
            pod["metadata"].get("deletionGracePeriodSeconds"),
            *(status["state"] for status in pod["status"]["containerStatuses"]),
        )
        for _, kind, of, pod in cluster.history
        if of == "pods" and "deletionTimestamp" in pod["metadata"]
    ]
    assert [(kind, grace, *state) for kind, grace, state in told] == [
        ("MODIFIED", grace, "running"),
        ("MODIFIED", grace, "terminated"),
        ("MODIFIED", 0, "terminated"),
        ("DELETED", 0, "terminated"),
    ]
    assert (end.code, end.message[-15:]) == ("session_disrupted", "it was deleted.")


def told(**status):
    pod = {
        "metadata": {"name": "jupyter-ada", "uid": "u", **status.pop("metadata", {})},
        "spec": {"nodeName": "one", "containers": []},
        "status": {"phase": "Failed", **status},
    }
    return msgspec.convert(pod, Pod).end


def container(code, reason, at="2026-01-01T00:00:10Z"):
    ended = {"exitCode": code, "reason": reason, "finishedAt": at}
    return [{"name": "notebook", "state": {"terminated": ended}}]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ({"phase": "Running"}, None, ""),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory. "},
            "session_disrupted",
            "one was ended, and not by the Hub: Evicted: The node was low",
        ),
        (
            {"containerStatuses": container(137, "OOMKilled")},
            "session_out_of_memory",
            "memory was used up",
        ),
        ({"containerStatuses": container(143, "Error")}, "session_killed", "SIGTERM"),
        (
            {"phase": "Succeeded", "containerStatuses": container(0, "Completed")},
            "session_ended",
            "exit status 0",
        ),
        (  # the Hub has deleted what had ended
            {
                "containerStatuses": container(3, "Error"),
                "metadata": {
                    "deletionTimestamp": "2026-01-01T00:00:31Z",
                    "deletionGracePeriodSeconds": 1,
                },
            },
            "session_ended",
            "exit status 3",
        ),
        (  # gone since, and nobody has seen who deleted it
            {
                "containerStatuses": container(3, "Error"),
                "metadata": {"deletionTimestamp": ""},
            },
            "session_ended",
            "exit status 3",
        ),
    ],
)
def test_end_of_a_pod_is_what_cluster_and_container_say(status, code, words):
    end = told(**status)
    assert (end.code if end else None) == code
    assert words in (end.message if end else "")
    at = 1767225610.0 if "containerStatuses" in status else 0.0
    assert (end.at if end else 0.0) == at


@pytest.mark.parametrize("saw_it_ended", [True, False])
def test_who_deletes_what_runs_is_told_apart_from_who_deletes_what_has_ended(
    saw_it_ended,
):
    ended = {"containerStatuses": container(0, "Completed")}
    deleted = {"deletionTimestamp": "2026-01-01T00:00:12Z"}
    first = ended if saw_it_ended else {}
    states = [
        {"status": first, "metadata": {}},
        {"status": first, "metadata": {**deleted}},
        {"status": ended, "metadata": {**deleted}},
    ]
    pod = None
    for state in states:
        state["metadata"]["name"] = "jupyter-ada"
        pod = msgspec.convert(state, Pod).after(pod)
    told = "session_ended" if saw_it_ended else "session_disrupted"
    assert pod.end.code == told


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ({"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}}, 2),
        ({"claims": [{"name": "card"}]}, 1),
        ({"claims": [{"name": "card"}, {"name": "slice", "request": "one"}]}, 2),
        ({}, 0),
    ],
)
def test_gpus_of_a_pod_are_counted_whether_limited_or_claimed(resources, gpus):
    spec = {"containers": [{"name": "notebook", "resources": resources}]}
    why = "0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims."
    waits = {"type": "PodScheduled", "reason": "Unschedulable", "message": why}
    pod = {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": [waits]}}
    read = msgspec.convert(pod, Pod)
    assert read.gpus == gpus
    assert read.lacks_gpu is bool(gpus)
    assert read.wants_gpu is bool(gpus)


async def test_line_of_a_watch_that_is_too_long_costs_a_new_list(cluster, service):
    """As many bytes as no list minds; the watch ended for good, and with it all."""
    ada = session_pod(cluster)
    await service.knows(lambda pods: len(pods) == 1)
    ada["metadata"]["annotations"]["long"] = "x" * (5 << 20)
    cluster.put("pods", ada)
    await service.knows(lambda pods: "long" in pods[0].metadata.annotations)
    session_pod(cluster, BOB, incarnation=I2)
    await service.knows(lambda pods: len(pods) == 2)
