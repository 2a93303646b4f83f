"""From the audit to a channel: in order, once, in time, and never in anybody's way."""

from __future__ import annotations

import asyncio

import pytest

from jupyterhub_gpu_reclaim.controlplane.journal.audit_log import AuditReader
from jupyterhub_gpu_reclaim.service.notices import courier
from jupyterhub_gpu_reclaim.service.notices.courier import Courier, telling
from jupyterhub_gpu_reclaim.service.notices.notice import SUBJECTS, NotSent
from jupyterhub_gpu_reclaim.service.notices.settings import Notices
from tests.support.manual_clock import ManualClock


class ChannelInMemory:
    """Keeps what it gets; fails as often, and in such a way, as it is told."""

    name = "memory"

    def __init__(self) -> None:
        self.told: list = []
        self.failures: list[Exception] = []

    async def send(self, notice) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.told.append(notice)

    def close(self) -> None:
        pass


class Hurried(ManualClock):
    """Sleeps no time at all, and notes it."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.slept: list[float] = []

    async def sleep(self, seconds):
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def channel():
    return ChannelInMemory()


@pytest.fixture
def courier_of(journal, channel):
    def make(kinds=tuple(SUBJECTS)):
        trail = AuditReader(journal, channel.name)
        return Courier(trail, channel, kinds=kinds, link="https://x/", clock=Hurried())

    return make


async def test_kinds_that_are_wanted_are_told_in_order_and_once(
    journal, channel, courier_of
):
    journal.note("released")  # before anybody asked to be told
    first = courier_of(["warned", "suspended", "resume-failed"])
    journal.note("warned", message="Idle for 31 min.", code="idle")
    journal.note("suspend")
    journal.note("capture_failed", message="No.", code="io_uring")
    journal.note("released", server="train")
    journal.note("restore_failed", message="Called off.", code="cancelled")
    journal.note("restore_failed", message="Broken.", code="chunk_missing")
    assert await first.once()
    assert not await first.once()
    assert not await courier_of().once()  # another service on the same journal
    assert [notice.kind for notice in channel.told] == [
        "warned",
        "suspended",
        "resume-failed",
    ]
    assert channel.told[0].sentence == "Its users were warned. Idle for 31 min."
    assert (channel.told[0].code, channel.told[0].link) == ("idle", "https://x/")
    assert channel.told[1].subject == "Suspended: your JupyterHub session train"


async def test_what_is_too_old_is_not_told(journal, channel, courier_of):
    late = courier_of()
    journal.note("warned", at=1000.0 - courier.OLDEST - 1)
    journal.note("warned", at=1000.0 - courier.OLDEST)
    await late.once()
    assert [notice.at for notice in channel.told] == [1000.0 - courier.OLDEST]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (NotSent("later", retryable=True), 1 + len(courier.RETRIES)),
        (NotSent("never", retryable=False), 1),
        (ValueError("a fault of ours"), 1),
    ],
)
async def test_failure_is_tried_again_and_given_up_and_the_next_is_told(
    journal, channel, courier_of, error, tries
):
    made = courier_of()
    journal.note("warned", user="ada")
    journal.note("warned", user="bob")
    channel.failures = [error] * tries
    await made.once()
    assert channel.failures == []
    assert [notice.session.user for notice in channel.told] == ["bob"]


async def test_crash_while_it_is_sent_tells_it_again_and_no_other(
    journal, channel, courier_of
):
    made = courier_of()
    for user in ("ada", "bob", "eve"):
        journal.note("warned", user=user)
    send, killed = channel.send, []

    async def die(notice):
        await send(notice)
        if notice.session.user == "bob" and not killed:
            killed.append(notice)
            raise asyncio.CancelledError

    channel.send = die
    with pytest.raises(asyncio.CancelledError):
        await made.once()
    await courier_of().once()
    users = [notice.session.user for notice in channel.told]
    assert users == ["ada", "bob", "bob", "eve"]
    assert channel.told[1].id == channel.told[2].id


async def test_webhook_is_told_while_the_service_runs(journal, receiver):
    notices = Notices(webhook_url=receiver.url)
    async with telling(journal, notices, ManualClock(1000.0)):
        receiver.statuses = [404]
        journal.note("warned")
        async with asyncio.timeout(10):
            while not receiver.requests:
                await asyncio.sleep(0.01)
