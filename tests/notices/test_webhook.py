"""The webhook: what it sends, how it is signed, and what it makes of answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.notices.notice import Notice, NotSent
from jupyterhub_gpu_reclaim.service.notices.webhook import Webhook
from tests.support.manual_clock import ManualClock

SECRET = b"a secret of sixteen letters"
NOTICE = Notice(
    id=7,
    kind="warned",
    at=5.0,
    session=SessionKey("ada", "träin"),
    sentence="A warning was given.",
    advice="Use it.",
    code="idle",
)


@pytest.fixture
def webhook(receiver):
    made = []

    def make(url=receiver.url, secret=b"", limit=10.0):
        made.append(Webhook(url, secret, limit, ManualClock(1234.9)))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def test_notice_is_posted_as_json_and_signed(webhook, receiver):
    await webhook(secret=SECRET).send(NOTICE)
    ((uri, headers, body),) = receiver.requests
    assert uri == "/hook?key=1"
    assert json.loads(body)["session"] == {"user": "ada", "server": "träin"}
    assert json.loads(body)["id"] == 7
    assert headers["Content-Type"] == "application/json"
    signed = hmac.new(SECRET, b"1234." + body, hashlib.sha256).hexdigest()
    assert headers["X-GPU-Reclaim-Timestamp"] == "1234"
    assert headers["X-GPU-Reclaim-Signature"] == f"sha256={signed}"


async def test_notice_without_a_secret_is_not_signed(webhook, receiver):
    await webhook().send(NOTICE)
    assert "X-GPU-Reclaim-Signature" not in receiver.requests[0][1]


@pytest.mark.parametrize(
    ("status", "again"),
    [(500, True), (429, True), (404, False), (302, False), (304, False)],
)
async def test_answer_that_is_no_yes_is_not_sent(webhook, receiver, status, again):
    receiver.statuses = [status]
    with pytest.raises(NotSent) as caught:
        await webhook().send(NOTICE)
    assert caught.value.retryable is again
    assert len(receiver.requests) == 1  # a redirection is not followed


async def test_receiver_that_is_silent_or_gone_is_not_waited_for(webhook, receiver):
    receiver.silent = True
    with pytest.raises(NotSent) as slow:
        await webhook(limit=0.2).send(NOTICE)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(NotSent) as gone:
            await webhook(f"http://127.0.0.1:{port}/?key=1").send(NOTICE)
    for caught in (slow, gone):
        assert caught.value.retryable
        assert "key=1" not in str(caught.value)
