"""KubeSpawner with the session's init, on the cluster's double, without a Hub."""

import asyncio
import copy
from types import SimpleNamespace

import msgspec
import pytest
from jupyterhub.utils import exponential_backoff
from kubernetes_asyncio import config
from kubernetes_asyncio.client import V1EnvVar
from kubespawner import KubeSpawner, clients, reflector
from kubespawner import spawner as upstream
from msgspec.structs import replace
from traitlets.config import Config

from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.kube import pod_events, watches
from jupyterhub_gpu_reclaim.hub.kube import spawner as kube
from jupyterhub_gpu_reclaim.hub.kube.spawner import (
    ReclaimKubeSpawner,
    SessionPodSpawner,
)
from jupyterhub_gpu_reclaim.hub.spawner.placement import Launch
from jupyterhub_gpu_reclaim.service.clients.pods import Pod
from tests.kube.conftest import until
from tests.support.cluster import NAMESPACE
from tests.support.nodes import SERVER_PORT

HUB = SimpleNamespace(
    public_host="", url="http://hub", base_url="/hub/", api_url="http://hub/hub/api"
)


class WithoutHub:
    def get_env(self):
        url = f"http://0.0.0.0:{SERVER_PORT}/user/ada/"
        return {"JUPYTERHUB_API_TOKEN": "fresh", "JUPYTERHUB_SERVICE_URL": url}

    def get_args(self):
        return []


class Spawner(WithoutHub, SessionPodSpawner):
    """Makes pods."""


class Reclaiming(WithoutHub, ReclaimKubeSpawner):
    """Finds them again."""


@pytest.fixture
async def make(cluster, tmp_path, monkeypatch):
    file = tmp_path / "kubeconfig"
    file.write_text(cluster.kubeconfig("hub"))
    monkeypatch.setattr(upstream, "load_config", lambda **_: None)
    # what it waits for, it would look at every five seconds in the end
    first, factor, _, *times = exponential_backoff.__defaults__
    hasty = (first, factor, 0.1, *times)
    monkeypatch.setattr(exponential_backoff, "__defaults__", hasty)
    await config.load_kube_config(str(file))

    def make(name="ada", incarnation="a" * 32, kind=Spawner, **more):
        kube = {"namespace": NAMESPACE, "port": SERVER_PORT, "start_timeout": 20}
        kube |= {"image": "quay.io/jupyter/base:latest", "events_enabled": True}
        spawner = kind(
            config=Config({"KubeSpawner": {**kube, **more}}),
            hub=HUB,
            user=SimpleNamespace(name=name, id=1, url=f"/user/{name}/"),
            api_token="fresh",
            oauth_client_id="unused",
        )
        spawner.reclaim_launch = Launch(incarnation=incarnation)
        return spawner

    yield make
    await KubeSpawner._stop_all_reflectors()
    for client in list(clients._client_cache.values()):
        await client.api_client.close()
    clients._client_cache.clear()


async def test_start_poll_and_stop(cluster, make):
    spawner = make()
    url = await spawner.start()
    pod = cluster.pod("jupyter-ada")
    assert url == f"http://{pod['status']['podIP']}:{SERVER_PORT}"
    assert await spawner.poll() is None
    await spawner.stop(now=True)
    assert cluster.pod("jupyter-ada") is None
    assert await spawner.poll() == 1


AWAY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@pytest.mark.parametrize(
    ("settings", "stays"),
    [
        ({}, [None, None]),  # for good
        ({"tolerations": [{"key": AWAY[0], "tolerationSeconds": 7}]}, [7, None]),
        ({"tolerations": [{"operator": "Exists", "tolerationSeconds": 9}]}, [9]),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, [None] * 3),
    ],
)
async def test_a_pod_stays_on_a_node_that_is_cut_off(cluster, make, settings, stays):
    """Not for 300 s, as Kubernetes has it where a pod says nothing."""
    await make(**settings).start()
    tolerations = cluster.pod("jupyter-ada")["spec"]["tolerations"]
    assert [each.get("tolerationSeconds") for each in tolerations] == stays
    if len(stays) > 1:
        assert {*AWAY} <= {each["key"] for each in tolerations}


async def test_a_hub_that_has_forgotten_a_pod_finds_it_by_its_incarnation(
    cluster, make
):
    """What a start needs that adopts: where it is, and the login in it."""
    url = await make().start()
    pod = cluster.pod("jupyter-ada")
    spawner = make(kind=Reclaiming, pod_name_template="renamed-{username}")
    assert await spawner.reclaim_find("f" * 32) is None
    place = await spawner.reclaim_find("a" * 32)
    assert (place.pod, place.name) == (pod["metadata"]["uid"], "jupyter-ada")
    spawner.reclaim_take(place)
    assert await spawner.reclaim_where(0) == url
    assert await spawner.reclaim_token() == "fresh"
    assert await spawner.reclaim_port() == SERVER_PORT
    assert spawner.reclaim_location() == place
    assert spawner.reclaim_alive()
    assert spawner.reclaim_frozen() is None
    await spawner.reclaim_end()
    assert cluster.pod("jupyter-ada") is None
    assert await spawner.reclaim_died()
    assert await spawner.reclaim_token() == ""


async def test_a_pod_counts_as_dead_when_the_kubelet_says_so_and_not_before(
    cluster, make
):
    await make().start()
    spawner = make(kind=Reclaiming)
    spawner.reclaim_take(await spawner.reclaim_find("a" * 32))
    died = asyncio.ensure_future(spawner.reclaim_died())
    await asyncio.sleep(0.3)
    assert not died.done()
    for node in cluster.nodes:
        node.places.clear()  # its processes are ended; the pod is still there
    assert await died
    assert cluster.pod("jupyter-ada") is not None


async def test_a_container_that_was_killed_ends_with_its_own_status(cluster, make):
    """As by the kernel, which had no memory left for it."""
    spawner = make()
    await spawner.start()
    for node in cluster.nodes:
        node.places.clear()
    seen = []

    async def ended():
        seen.append(await spawner.poll())
        return seen[-1] is not None

    await until(ended)
    assert seen[-1] == 137


async def test_the_end_of_a_pod_is_told_at_once_and_not_at_the_next_poll(cluster, make):
    """Which is up to thirty seconds later; the watch has told by then."""
    spawner = make(kind=Reclaiming, poll_interval=600)
    await SessionPodSpawner.start(spawner)
    told = asyncio.Event()
    spawner.add_poll_callback(told.set)
    spawner.start_polling()
    await asyncio.sleep(1.5)
    assert not told.is_set()
    cluster.delete_pod(cluster.pod("jupyter-ada"), 30)
    await asyncio.wait_for(told.wait(), 60)
    assert cluster.pod("jupyter-ada") is None


async def test_a_pod_that_is_ending_is_waited_for_and_never_forced(cluster, make):
    """Its name is taken (409) until its containers are dead: one volume, one pod."""
    former = make()
    await former.start()
    uid = cluster.pod("jupyter-ada")["metadata"]["uid"]
    cluster.delete_seconds = 1.0
    spawner = make(incarnation="b" * 32)
    starting = asyncio.ensure_future(spawner.start())
    await until(lambda: "deletionTimestamp" in cluster.pod("jupyter-ada")["metadata"])
    assert cluster.pod("jupyter-ada")["metadata"]["uid"] == uid
    assert "has not ended yet" in await until(spawner._waits_for)
    await starting
    assert cluster.pod("jupyter-ada")["metadata"]["uid"] != uid
    running = [place.incarnation for n in cluster.nodes for place in n.places.values()]
    assert running == ["b" * 32]


async def test_an_api_server_that_is_busy_is_asked_again(cluster, make):
    spawner = make()
    await spawner._start_watching_pods()
    await spawner._start_watching_events()
    cluster.throttled, cluster.down = 1, 1
    await spawner.start()
    cluster.throttled = 1
    await spawner.stop()
    assert cluster.pod("jupyter-ada") is None


class Hasty:
    """asyncio, for which a minute is over in half a second."""

    def __getattr__(self, name):
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds):
        await asyncio.sleep(seconds / 100)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(reflector, "asyncio", Hasty())
    monkeypatch.setattr(watches, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(watches, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(kube, "LOOK_SECONDS", 0.1)


async def given_up(cluster):
    """The API server is away until every watch has given up."""
    await cluster.go_away()
    watching = [watch.watch_task for watch in KubeSpawner.reflectors.values()]
    assert watching
    await asyncio.wait(watching, timeout=30)
    assert all(task.done() for task in watching)


async def test_nothing_rests_on_a_list_that_stands_still(cluster, make, hasty):
    """As after a minute without the API server: KubeSpawner's watches give up."""
    spawner = make(kind=Reclaiming)
    await SessionPodSpawner.start(spawner)
    await given_up(cluster)
    assert await SessionPodSpawner.poll(spawner) is None
    assert spawner.reclaim_alive()
    told = [event async for event in KubeSpawner.progress(spawner)]
    assert told  # what was heard before
    await spawner.reclaim_end()  # which says so, and leaves it
    with pytest.raises(Unreachable) as refused:
        await returning(make("bob", "b" * 32)).start()
    assert refused.value.reason is Reason.CLUSTER_UNREACHABLE
    cluster.come_back()
    for node in cluster.nodes:
        node.places.clear()

    async def ended():
        return await SessionPodSpawner.poll(spawner)

    assert await until(ended) == 137
    await make("bob", "b" * 32).start()


@pytest.mark.parametrize("hold", [False, True])
async def test_a_start_goes_on_whose_watch_has_given_up_in_the_middle(
    cluster, make, hasty, monkeypatch, hold
):
    """KubeSpawner looks at the start's limit, which ours ends before."""
    monkeypatch.setattr(watches, "WAIT_SECONDS", 60.0)
    for node in cluster.nodes:
        node.schedulable = False
    spawner = returning(make()) if hold else make()
    starting = asyncio.ensure_future(spawner.start())
    await until(lambda: cluster.pod("jupyter-ada"))
    await given_up(cluster)
    cluster.come_back()
    for node in cluster.nodes:
        node.schedulable = True
    cluster.schedule_again()
    await asyncio.wait_for(starting, 60)


async def test_a_watch_whose_first_list_failed_is_begun_anew(cluster, make):
    """Its list is empty, and no pod is gone for that."""
    await make().start()
    await KubeSpawner._stop_all_reflectors()
    await cluster.go_away()
    spawner = make(kind=Reclaiming)
    for _ in range(2):
        assert await SessionPodSpawner.poll(spawner) is None
    cluster.come_back()
    assert await SessionPodSpawner.poll(spawner) is None
    assert await spawner.reclaim_find("a" * 32) is not None


QUOTA = (
    'pods "jupyter-ada" is forbidden: exceeded quota: gpus, requested:'
    " requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited:"
    " requests.nvidia.com/gpu=4"
)


def returning(spawner):
    identity = Identity(api_token="saved", port=SERVER_PORT)
    launch = replace(spawner.reclaim_launch, mode="hold", identity=identity)
    spawner.reclaim_launch = launch
    return spawner


async def test_a_return_waits_for_a_quota_that_is_used_up(cluster, make, monkeypatch):
    monkeypatch.setattr(kube, "RETRY_SECONDS", 0.1)
    cluster.refusal = QUOTA
    spawner = returning(make())
    starting = asyncio.ensure_future(spawner.start())
    assert "exceeded quota: gpus" in await until(spawner._waits_for)
    assert not starting.done()
    cluster.refusal = ""
    await starting
    assert cluster.pod("jupyter-ada") is not None
    assert "quota" not in spawner._waits_for()


NO_GPU = (
    "OutOfnvidia.com/gpu",
    "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu",
)


async def test_a_return_that_a_node_sends_away_is_tried_elsewhere(
    cluster, make, monkeypatch
):
    """As after a restart of a node, whose devices are not announced yet."""
    monkeypatch.setattr(kube, "RETRY_SECONDS", 0.5)
    one, two = cluster.nodes
    one.rejects, two.schedulable = NO_GPU, False
    spawner = returning(make())
    starting = asyncio.ensure_future(spawner.start())
    told = await until(lambda: "another machine" in (w := spawner._waits_for()) and w)
    assert "one did not take it (OutOfnvidia.com/gpu: Pod was rejected" in told
    assert not starting.done()
    two.schedulable = True
    await starting
    pod = cluster.pod("jupyter-ada")
    assert pod["spec"]["nodeName"] == "two"
    assert "another machine" not in spawner._waits_for()


async def test_a_new_session_that_a_node_sends_away_says_which_and_why(cluster, make):
    for node in cluster.nodes:
        node.rejects = (
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed",
        )
    with pytest.raises(Refused) as refused:
        await make().start()
    assert refused.value.reason is Reason.POD_REJECTED
    assert refused.value.retryable
    assert "Machine one did not" in refused.value.message
    assert "NodeAffinity" in refused.value.message


async def test_a_sidecar_that_has_ended_keeps_no_session_from_starting(cluster, make):
    sidecar = {"name": "fetch", "image": "busybox"}
    spawner = make(extra_containers=[sidecar], start_timeout=10)
    starting = asyncio.ensure_future(spawner.start())
    pod = await until(lambda: cluster.pod("jupyter-ada"))
    pod = copy.deepcopy(
        await until(
            lambda: (
                (p := cluster.pod("jupyter-ada"))
                and p["status"].get("containerStatuses")
                and p
            )
        )
    )
    for status in pod["status"]["containerStatuses"]:
        if status["name"] == "fetch":
            status["ready"] = False
            status["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    assert pod_events.obstacle(msgspec.convert(pod, Pod)) == ""
    cluster.put("pods", pod)
    await starting


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (False, QUOTA),
        (True, 'pods "jupyter-ada" is forbidden: violates PodSecurity "restricted"'),
    ],
)
async def test_a_pod_that_the_cluster_refuses_is_refused_in_its_words(
    cluster, make, hold, words
):
    cluster.refusal = words
    spawner = returning(make()) if hold else make()
    with pytest.raises(Refused) as refused:
        await spawner.start()
    assert refused.value.reason is Reason.PLACE_REFUSED
    assert words in refused.value.message
    assert cluster.pod("jupyter-ada") is None


@pytest.mark.parametrize("body", [None, b"", b"[]", b"no json", b'{"message": ""}'])
def test_a_refusal_without_words_is_one_all_the_same(body):
    assert pod_events.refusal(body) == "it does not say why"


async def test_progress_tells_nothing_of_the_former_pod_of_that_name(cluster, make):
    former = make()
    await former.start()
    cluster.say(cluster.pod("jupyter-ada"), "Killing", "Stopping container notebook")
    spawner = make(incarnation="b" * 32)
    await spawner._start_watching_pods()
    await spawner._start_watching_events()
    told = []

    async def listen():
        told.extend([e["message"] async for e in KubeSpawner.progress(spawner)])

    listening = asyncio.ensure_future(listen())
    await asyncio.sleep(1.2)
    assert told == []
    await former.stop(now=True)
    await spawner.start()
    await asyncio.wait_for(listening, 60)
    assert told
    assert not any("Stopping container" in each for each in told)


async def test_a_return_in_another_image_than_the_chosen_one_says_so(cluster, make):
    spawner = make(kind=Reclaiming)
    saved = "quay.io/jupyter/scipy@sha256:" + "a" * 64
    identity = Identity(api_token="saved", port=SERVER_PORT, image=saved)
    spawner.reclaim_launch = replace(
        spawner.reclaim_launch,
        mode="hold",
        identity=identity,
        image="quay.io/jupyter/scipy",
    )
    told: list[str] = []
    telling = asyncio.ensure_future(spawner.reclaim_waiting(told.append))
    await SessionPodSpawner.start(spawner)
    await until(lambda: any("quay.io/jupyter/scipy, and not" in each for each in told))
    telling.cancel()
    images = [c["image"] for c in cluster.pod("jupyter-ada")["spec"]["containers"]]
    assert images == [saved]


def profiles(*, image="quay.io/jupyter/base:june", gpus="1", choice="june"):
    gpu = {"extra_resource_limits": {"nvidia.com/gpu": gpus}, "mem_limit": "2G"}
    options = {
        "image": {
            "display_name": "Image",
            "choices": {choice: {"kubespawner_override": {"image": image}}},
        }
    }
    return [
        {"display_name": "CPU", "slug": "cpu", "default": True},
        {
            "display_name": "GPU",
            "slug": "gpu",
            "kubespawner_override": {**gpu, "environment": {"KEY": "secret"}},
            "profile_options": options,
        },
    ]


async def started_as(make, chosen, **more):
    spawner = make(kind=Reclaiming, **more)
    spawner.user_options = chosen
    await SessionPodSpawner.start(spawner)
    choice = spawner.reclaim_choice()
    await SessionPodSpawner.stop(spawner, now=True)
    return choice


async def come_back(make, choice, now=None, **more):
    spawner = make(kind=Reclaiming, incarnation="b" * 32, **more)
    image = "quay.io/jupyter/base@sha256:" + "a" * 64
    identity = Identity(api_token="saved", port=SERVER_PORT, image=image)
    spawner.reclaim_launch = replace(
        spawner.reclaim_launch, mode="hold", identity=identity, choice=choice
    )
    spawner.user_options = {} if now is None else now
    await SessionPodSpawner.start(spawner)
    return spawner


def resources(cluster):
    containers = cluster.pod("jupyter-ada")["spec"]["containers"]
    return containers[0]["resources"]["limits"]


@pytest.mark.parametrize(
    "today",
    [profiles(choice="july", image="quay.io/jupyter/base:july"), profiles()[:1], []],
    ids=["image bumped", "profile gone", "no profiles"],
)
async def test_a_return_whose_choice_is_not_offered_any_more_is_as_it_was(
    cluster, make, today
):
    chosen = {"profile": "gpu", "image": "june"}
    choice = await started_as(make, chosen, profile_list=profiles())
    assert "secret" not in str(choice)
    limits = {"nvidia.com/gpu": "1", "memory": 2 << 30}
    await come_back(make, choice, profile_list=today)
    assert resources(cluster) == limits


def volumes(claim="claim-ada", *, secret="tokens", path="/data"):
    """A volume that stays, one that does not, and a hook's variables."""
    return {
        "volumes": {
            "data": {"name": "data", "persistentVolumeClaim": {"claimName": claim}},
            "tokens": {"name": "tokens", "secret": {"secretName": secret}},
        },
        "volume_mounts": {
            "data": {"name": "data", "mountPath": path},
            "tokens": {"name": "tokens", "mountPath": "/tokens"},
        },
    }


def handing_out(value, name="CUDA_VISIBLE_DEVICES"):
    def hook(spawner, pod):
        pod.spec.containers[0].env.append(V1EnvVar(name, value))
        return pod

    return {"modify_pod_hook": hook}


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        (
            handing_out("0"),
            handing_out("1"),
            "CUDA_VISIBLE_DEVICES was 0 and would be 1",
        ),
        (volumes(), volumes("other"), "something else would be mounted at /data"),
        (volumes(), volumes(path="/more"), "nothing would be mounted at /data"),
        (
            handing_out("1000", "NB_UID"),
            handing_out("1001", "NB_UID"),
            "belongs to user id 1000; here it would be 1001",
        ),
    ],
    ids=["card", "volume", "mount", "user"],
)
async def test_a_return_that_would_be_given_something_else_is_refused(
    cluster, make, then, now, why
):
    choice = await started_as(make, {}, **then)
    assert "claim-ada" not in str(choice)
    with pytest.raises(Refused) as refused:
        await come_back(make, choice, **now)
    assert why in refused.value.message
    assert cluster.pod("jupyter-ada") is None


async def test_a_return_is_given_other_passing_volumes_and_more(cluster, make):
    choice = await started_as(make, {}, **volumes(), **handing_out("0"))
    more = volumes(secret="new")
    more["volumes"]["more"] = {"name": "more", "hostPath": {"path": "/srv"}}
    more["volume_mounts"]["more"] = {"name": "more", "mountPath": "/srv"}
    await come_back(make, choice, **more)
    assert cluster.pod("jupyter-ada") is not None


async def test_a_return_goes_by_the_old_choice_as_it_is_defined_today(cluster, make):
    choice = await started_as(make, {"profile": "gpu"}, profile_list=profiles())
    spawner = await come_back(
        make, choice, {"profile": "cpu"}, profile_list=profiles(gpus="2")
    )
    assert resources(cluster)["nvidia.com/gpu"] == "2"
    assert "what you chose is for a fresh start" in spawner._waits_for()


async def test_the_default_profile_of_its_start_is_that_of_its_return(cluster, make):
    """Another is the default by then."""
    at_first = [profiles()[1]]
    choice = await started_as(make, {}, profile_list=at_first)
    await come_back(make, choice, profile_list=profiles())
    assert resources(cluster)["nvidia.com/gpu"] == "1"


async def test_a_profile_that_a_function_leaves_out_may_be_a_right_taken_away(
    cluster, make
):
    chosen = {"profile": "gpu"}
    choice = await started_as(make, chosen, profile_list=lambda _: profiles())
    with pytest.raises(Refused) as refused:
        await come_back(make, choice, profile_list=lambda _: profiles()[:1])
    assert refused.value.reason is Reason.PROFILE_GONE
    assert "No such profile: gpu" in refused.value.message
    assert cluster.pod("jupyter-ada") is None


async def test_a_profile_that_a_hook_leaves_out_may_be_a_right_taken_away(make):
    """Lists that a hook or a group's override sets are for this user, too."""
    offered = make(kind=Reclaiming, profile_list=profiles())
    offered.user_options = {"profile": "gpu"}
    await offered.load_user_options()
    for hooked in (False, True):
        kube = make(kind=Reclaiming, profile_list=profiles()[:1])
        choice = offered.reclaim_choice()
        kube.reclaim_launch = replace(kube.reclaim_launch, mode="hold", choice=choice)
        if not hooked:
            await kube.load_user_options()
            continue
        kube.profile_list = []
        with pytest.raises(Refused) as refused:
            await kube.load_user_options()
        assert refused.value.reason is Reason.PROFILE_GONE


async def test_what_a_state_cannot_keep_is_not_made_up(cluster, make):
    volume = [SimpleNamespace(name="scratch")]
    offered = profiles()
    offered[1]["kubespawner_override"]["common_labels"] = lambda _: {"v": volume}
    kube = make(kind=Reclaiming, profile_list=offered)
    kube.user_options = {"profile": "gpu"}
    await kube.load_user_options()
    assert kube.reclaim_choice().overrides == ()
    with pytest.raises(Refused) as refused:
        await come_back(make, kube.reclaim_choice(), profile_list=profiles()[:1])
    assert refused.value.reason is Reason.PROFILE_GONE


async def test_a_return_asks_for_its_image_where_the_profile_named_it(cluster, make):
    """The kubelet had the same bytes from elsewhere, where we may not pull."""
    spawner = returning(make())
    saved = "mirror.example/cache/base@sha256:" + "a" * 64
    identity = replace(spawner.reclaim_launch.identity, image=saved)
    spawner.reclaim_launch = replace(
        spawner.reclaim_launch, identity=identity, image="quay.io/jupyter/base:latest"
    )
    await spawner.start()
    (container,) = cluster.pod("jupyter-ada")["spec"]["containers"]
    assert container["image"] == "quay.io/jupyter/base@sha256:" + "a" * 64
    assert spawner._waits_for() == ""


async def test_a_hook_that_removes_the_init_stops_a_return(cluster, make):
    def hook(spawner, pod):
        pod = copy.copy(pod)
        pod.spec.containers[0].command = None
        pod.spec.containers[0].args = ["jupyterhub-singleuser"]
        return pod

    spawner = make(modify_pod_hook=hook)
    cold = spawner.reclaim_launch
    returning(spawner)
    with pytest.raises(Refused) as refused:
        await spawner.start()
    assert refused.value.reason is Reason.PLACE_UNSUITABLE
    assert cluster.pod("jupyter-ada") is None
    spawner.reclaim_launch = cold  # a new session runs, and cannot be suspended
    await spawner.start()


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("quota", "exceeded quota: gpus"),
        ("rejected", "did not take it (OutOfnvidia.com/gpu"),
        ("unschedulable", "no node matches"),
    ],
)
async def test_a_return_that_gets_no_place_says_why_before_the_hub_gives_up(
    cluster, make, monkeypatch, why, words
):
    monkeypatch.setattr(kube, "RETRY_SECONDS", 60 if why == "rejected" else 0.1)
    monkeypatch.setattr(kube, "LOOK_SECONDS", 0.1)
    cluster.refusal = QUOTA if why == "quota" else ""
    for node in cluster.nodes:
        node.rejects = NO_GPU if why == "rejected" else None
        node.schedulable = why != "unschedulable"
    # within it the pod is made, judged by the scheduler, and heard of
    with pytest.raises(Refused) as refused:
        await returning(make(start_timeout=8)).start()
    assert refused.value.reason is Reason.NOT_PLACED
    assert words in refused.value.message
    assert (cluster.pod("jupyter-ada") is None) == (why != "unschedulable")


async def test_a_container_that_cannot_run_is_no_long_wait(cluster, make, monkeypatch):
    node_class = type(cluster.nodes[0])
    monkeypatch.setattr(node_class, "run", _without_python)
    spawner = make(start_timeout=60)
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(spawner.start(), 60)
    assert refused.value.reason is Reason.POD_ENDED
    assert "python3" in refused.value.message


def _without_python(node, pod):
    pod = copy.deepcopy(pod)
    message = 'exec: "python3": executable file not found in $PATH'
    pod["status"] = {
        "phase": "Failed",
        "containerStatuses": [
            {
                "name": "notebook",
                "image": "i",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {
                    "terminated": {
                        "exitCode": 128,
                        "reason": "StartError",
                        "message": message,
                    }
                },
            }
        ],
    }
    node.cluster.put("pods", pod)


@pytest.mark.parametrize("events", [True, False])
async def test_a_place_that_is_made_tells_what_kubernetes_says_and_the_queue(
    cluster, make, events
):
    gpu = {"extra_resource_limits": {"nvidia.com/gpu": "1"}}
    cluster.gpus = 0
    spawner = make(kind=Reclaiming, events_enabled=events, **gpu)
    told: list[str] = []
    telling = asyncio.ensure_future(spawner.reclaim_waiting(told.append))
    starting = asyncio.ensure_future(SessionPodSpawner.start(spawner))

    def heard(words):
        return any(words in each for each in told)

    await until(lambda: heard("number 1 of 1") and heard("[Warning]") is events)
    cluster.gpus = 8
    cluster.schedule_again()
    await starting
    telling.cancel()


async def test_progress_tells_the_place_in_the_queue_of_a_new_session(cluster, make):
    gpu = {"extra_resource_limits": {"nvidia.com/gpu": "1"}}
    cluster.gpus = 0
    spawners = [make(name, name * 16, **gpu) for name in ("ed", "fe")]
    starts = [asyncio.ensure_future(spawner.start()) for spawner in spawners]
    await until(lambda: len(cluster.session_pods()) == 2)
    told = []
    async with asyncio.timeout(60):
        async for event in spawners[1].progress():
            told.append(event["message"])
            if "of 2 in the queue" in told[-1]:
                break
    assert "Waiting for a free GPU: number" in told[-1]
    for start in starts:
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)
