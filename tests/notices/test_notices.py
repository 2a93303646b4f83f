"""From the audit to real receivers: once, in time, and never in anybody's way."""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from email import message_from_bytes, policy

import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.controlplane import audit
from jupyterhub_gpu_reclaim.controlplane.accounting import Counters
from jupyterhub_gpu_reclaim.service import notices
from jupyterhub_gpu_reclaim.service.app import ReclaimService
from tests.support.counted import counted

SECRET = b"a secret of sixteen letters"
#: One of Apprise's plugins imports it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


def notice(user="ada", server="träin", what="warned"):
    return AuditLine(
        id=7,
        at=5.0,
        key=SessionKey(user, server),
        who="gpu-reclaim",
        what=what,
        code="idle",
        message="Idle for <b>31</b> min.",
    )


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(audit, "PACE", 0.01)
    monkeypatch.setattr(notices, "LIMIT", 0.5)


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


# --- the webhook
async def test_notice_is_posted_once_and_its_signature_covers_the_time(receiver):
    send = notices.webhook(receiver.url, SECRET)
    assert await asyncio.to_thread(send, notice()) == ""
    ((uri, headers, body),) = receiver.requests
    assert uri == "/hook?key=1"
    told = codec.decode(body, AuditLine)
    assert told == audit.told(notice())
    assert told.sentence == "Its users were warned. Idle for <b>31</b> min."
    at = headers["X-GPU-Reclaim-Timestamp"]
    assert abs(time.time() - int(at)) < 60
    signed = hmac.new(SECRET, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["X-GPU-Reclaim-Signature"] == f"sha256={signed}"


async def test_notice_without_a_secret_is_not_signed(receiver):
    await asyncio.to_thread(notices.webhook(receiver.url, b""), notice())
    assert "X-GPU-Reclaim-Signature" not in receiver.requests[0][1]


@pytest.mark.parametrize("status", [500, 429, 404, 302, 304])
async def test_answer_that_is_no_yes_is_said_and_not_followed(receiver, status):
    receiver.statuses = [status]
    send = notices.webhook(receiver.url, b"")
    assert await asyncio.to_thread(send, notice()) == f"status {status}"
    assert len(receiver.requests) == 1


# --- Apprise
def json_address(receiver, rest):
    return receiver.url.replace("http:", "json:").partition("/hook")[0] + rest


async def test_every_address_gets_title_and_sentence(receiver):
    addresses = [json_address(receiver, rest) for rest in ("/one", "/to/{user}")]
    assert await asyncio.to_thread(notices.messenger(addresses), notice()) == ""
    assert {uri for uri, _, _ in receiver.requests} == {"/one", "/to/ada"}
    body = json.loads(receiver.requests[0][2])
    assert body["title"] == "JupyterHub session ada/träin: warned"
    assert body["message"] == "Its users were warned. Idle for <b>31</b> min."


@pytest.mark.parametrize(
    "user",
    [
        *("eve@evil.org,x", "a b", "<x", "a\nb", "ü", "a,b", "x:y", "o'b", "a/../x"),
        *("x?to=all&y=#", "a;b", "[x]", "%2C", ""),
    ],
)
async def test_user_whose_name_may_be_several_receivers_is_not_told(
    serve_mail, receiver, user
):
    mailbox, port = await serve_mail()
    addresses = [mail(port), json_address(receiver, "/to/{user}")]
    assert await asyncio.to_thread(notices.messenger(addresses), notice(user)) != ""
    assert (mailbox.messages, receiver.requests) == ([], [])


def mail(port, to="{user}@example.org", login="", scheme="mailto", more=""):
    start = f"{scheme}://{login}127.0.0.1:{port}/?from=JupyterHub%20<hub@example.org>"
    return f"{start}&to={to}{more}"


@pytest.mark.parametrize(
    ("tls", "scheme", "mode"),
    [("none", "mailto", ""), ("starttls", "mailtos", ""), ("tls", "mailtos", "ssl")],
)
async def test_mail_server_gets_one_message_for_one_receiver(
    serve_mail, tls, scheme, mode
):
    mailbox, port = await serve_mail(tls)
    more = "&+Auto-Submitted=auto-generated" + (mode and f"&mode={mode}")
    address = mail(port, login="hub:s3cret@", scheme=scheme, more=more)
    told = notice(server="x\r\nBcc: eve@example.org\ny")
    assert await asyncio.to_thread(notices.messenger([address]), told) == ""
    (envelope,) = mailbox.messages
    assert mailbox.logins == [(b"hub", b"s3cret")]
    assert envelope.rcpt_tos == ["ada@example.org"]
    message = message_from_bytes(envelope.content, policy=policy.default)
    assert message["Bcc"] is None
    assert message["Auto-Submitted"] == "auto-generated"
    assert "Its users were warned." in message.get_content()


async def test_name_with_a_domain_is_not_put_before_another_one(serve_mail):
    mailbox, port = await serve_mail()
    send = notices.messenger([mail(port)])
    assert await asyncio.to_thread(send, notice("x@bob")) != ""  # bob@example.org
    assert mailbox.messages == []


async def test_names_that_are_mail_addresses_may_be_used_as_such(serve_mail):
    mailbox, port = await serve_mail()
    send = notices.messenger([mail(port, to="{user}")])
    assert await asyncio.to_thread(send, notice("a.b+c@x-y.org")) == ""
    assert mailbox.messages[0].rcpt_tos == ["a.b+c@x-y.org"]


async def test_mail_server_without_the_protection_asked_for_gets_nothing(serve_mail):
    mailbox, port = await serve_mail()
    send = notices.messenger([mail(port, scheme="mailtos")])
    assert await asyncio.to_thread(send, notice()) != ""
    assert mailbox.messages == []


# --- the service
async def test_lines_of_the_audit_are_told_in_order_to_each_channel(journal):
    told = {"one": [], "two": []}
    senders = {
        name: lambda one, to=to: to.append(one) or "" for name, to in told.items()
    }
    counters = Counters()
    journal.note("released")  # before anybody asked to be told
    async with notices.telling(journal, senders, counters):
        journal.note("warned", message="Idle for 31 min.", code="idle")
        journal.note("suspend")
        journal.note("released", server="train")
        journal.note("restore_failed", message="Called off.", code="cancelled")
        journal.note("restore_failed", message="Broken.", code="chunk_missing")
        await until(lambda: all(len(each) == 3 for each in told.values()))
    for each in told.values():
        kinds = [notices.KINDS[one.what] for one in each]
        assert kinds == ["warned", "suspended", "resume-failed"]
    assert counted(counters, "notices_unsent_total") == 0


async def test_silent_receiver_holds_up_nobody_and_each_failure_counts(
    journal, receiver, monkeypatch, caplog
):
    """Whoever waits for room longer than there is any is given up, too."""
    monkeypatch.setattr(notices, "ROOM", 1)
    receiver.silent = True
    counters, others = Counters(), []
    senders = {
        "webhook": notices.webhook(receiver.url, SECRET),
        "others": lambda one: others.append(one) or "",
    }
    with caplog.at_level(logging.WARNING):
        async with notices.telling(journal, senders, counters):
            begun = time.monotonic()
            for number in range(5):
                journal.note("warned", user=f"user{number}")
                await until(lambda n=number: len(others) > n)
            assert time.monotonic() - begun < 5
            await until(lambda: counted(counters, "notices_unsent_total") == 5)
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == 5
    assert {line.partition(": ")[2] for line in lines} == {
        "webhook not told: TimeoutError",
        "webhook not told: too many wait",
    }
    assert "key=1" not in caplog.text


async def test_receiver_that_is_gone_costs_a_line_and_the_next_is_told(
    journal, receiver
):
    counters = Counters()
    receiver.statuses = [500]
    send = notices.webhook(receiver.url, b"")
    async with notices.telling(journal, {"webhook": send}, counters):
        journal.note("warned")
        journal.note("warned", user="bob")
        await until(lambda: len(receiver.requests) == 2)
    assert counted(counters, "notices_unsent_total") == 1


# --- settings
def senders(**settings):
    return list(ReclaimService(**settings)._senders())


def test_nobody_is_told_unless_it_is_configured(tmp_path):
    assert senders() == []
    file = tmp_path / "addresses"
    file.write_text("# our room\n\njson://127.0.0.1:1/hook\n")
    url = "https://x.org/h"
    assert senders(webhook_url=url, messenger_file=str(file)) == [
        "webhook",
        "messenger",
    ]


@pytest.mark.parametrize(
    ("contents", "why"),
    [(None, "No such file"), (b" \n", "it is empty"), (b"\xff\xfe", "it is no text")],
)
def test_file_that_is_missing_is_said_at_the_start(tmp_path, contents, why):
    file = tmp_path / "secret"
    if contents is not None:
        file.write_bytes(contents)
    with pytest.raises(Refused, match=why):
        senders(webhook_url="http://x/", webhook_secret_file=str(file))


def test_missing_library_is_said_with_the_command_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    file = tmp_path / "addresses"
    file.write_text("json://127.0.0.1:1/hook\n")
    with pytest.raises(Refused, match=r"pip install jupyterhub-gpu-reclaim\[notices\]"):
        senders(messenger_file=str(file))
