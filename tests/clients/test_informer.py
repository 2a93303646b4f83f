"""The mirror of pods: late, patient, and unknown rather than wrong."""

import asyncio

import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.informer import (
    RESYNC,
    STALE,
    Informer,
)
from jupyterhub_gpu_reclaim.service.clients.pods import Meta, Pod, Pods
from tests.support.manual_clock import ManualClock


class Waiting(ManualClock):
    """Moves by itself when somebody waits, and remembers for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)

    def pass_(self, seconds: float) -> None:
        self._now += seconds


class Script:
    """A server that answers lists and watches as it is told to."""

    def __init__(self, clock, lists, watches=()) -> None:
        self.clock, self.lists, self.watches = clock, list(lists), list(watches)
        self.versions: list[str] = []
        self.done = asyncio.Event()

    async def pods(self, namespace, selector):
        if not self.lists:
            self.done.set()
            await asyncio.Event().wait()
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, namespace, selector, version):
        self.versions.append(version)
        if not self.watches:
            self.done.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            if isinstance(event, float):
                self.clock.pass_(event)
            else:
                yield event


def pods(version, *uids):
    items = [Pod(metadata=Meta(uid=uid)) for uid in uids]
    return Pods(metadata=Meta(resource_version=version), items=items)


def event(kind, uid, version="9"):
    return kind, Pod(metadata=Meta(uid=uid, resource_version=version))


def busy(detail):
    return Unreachable(Reason.CLUSTER_UNREACHABLE, detail=detail)


async def run(lists, watches=()):
    """Follow a script to its end; mirror, script and clock."""
    clock = Waiting()
    script = Script(clock, lists, watches)
    mirror = Informer(script, clock, namespace="hub", selector="x")
    task = asyncio.create_task(mirror.run())
    await asyncio.wait_for(script.done.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return mirror, script, clock


def uids(mirror):
    return sorted(pod.uid for pod in mirror.now())


async def test_a_watch_goes_on_where_the_last_one_ended():
    first = [event("ADDED", "b", "6"), event("BOOKMARK", "", "8")]
    mirror, script, _ = await run(
        [pods("5", "a")], [first, [event("DELETED", "a", "9")]]
    )
    assert script.versions == ["5", "8", "9"]
    assert uids(mirror) == ["b"]


@pytest.mark.parametrize("fault", [busy("503"), busy("cut")])
async def test_whatever_breaks_a_watch_costs_a_new_list(fault):
    watches = [[event("ADDED", "wrong"), fault]]
    mirror, script, _ = await run([pods("5", "a"), pods("20", "c")], watches)
    assert script.versions == ["5", "20"]
    assert uids(mirror) == ["c"]


async def test_the_wait_doubles_up_to_its_limit():
    _, _, clock = await run([busy("503")] * 9 + [pods("5", "a")])
    near = [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [w / n for w, n in zip(clock.waits, near, strict=True)] == pytest.approx(
        [1.0] * 9, abs=0.25
    )


async def test_after_an_answer_the_wait_is_short_again():
    lists = [busy("1"), busy("2"), busy("3"), pods("5"), pods("6")]
    _, _, clock = await run(lists, [[busy("4")]])
    assert clock.waits[-1] <= 0.5 * 1.25


async def test_a_picture_that_nobody_confirms_is_no_picture():
    mirror, _, clock = await run([pods("5", "a")])
    assert uids(mirror) == ["a"]
    clock.pass_(STALE + 1)
    with pytest.raises(Unreachable) as unknown:
        mirror.now()
    assert unknown.value.reason is Reason.CLUSTER_UNREACHABLE


async def test_before_the_first_list_the_reason_of_the_failure_is_told():
    mirror, _, _ = await run([Unreachable(Reason.CLUSTER_FORBIDS, verb="list")])
    with pytest.raises(Unreachable) as unknown:
        mirror.now()
    assert unknown.value.reason is Reason.CLUSTER_FORBIDS


async def test_everything_is_listed_anew_now_and_then():
    mirror, script, _ = await run([pods("5", "a"), pods("7", "b")], [[RESYNC + 1.0]])
    assert script.versions == ["5", "7"]
    assert uids(mirror) == ["b"]


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_all_the_time():
    _, script, clock = await run([pods("5")], [[], [], []])
    assert len(script.versions) == 4
    assert clock.waits == [0.5] * 3


async def test_pods_of_one_session_follow_every_change():
    def told(kind, uid, user):
        notes = {"gpu-reclaim/user": user, "gpu-reclaim/server": "lab"}
        meta = Meta(uid=uid, resource_version="9", annotations=notes)
        return kind, Pod(metadata=meta)

    watch = [
        told("ADDED", "a", "ada"),
        told("ADDED", "b", "ada"),
        told("ADDED", "c", "bob"),
        told("MODIFIED", "b", "bob"),
        told("DELETED", "c", "bob"),
        told("DELETED", "never", "bob"),
    ]
    mirror, _, clock = await run([pods("5", "x")], [watch])
    of = {user: mirror.of(SessionKey(user, "lab")) for user in ("ada", "bob", "eve")}
    assert {user: [pod.uid for pod in found] for user, found in of.items()} == {
        "ada": ["a"],
        "bob": ["b"],
        "eve": [],
    }
    clock.pass_(STALE + 1)
    with pytest.raises(Unreachable):
        mirror.of(SessionKey("ada", "lab"))
