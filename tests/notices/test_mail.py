"""E-mails through a real mail server: what they say, to whom, and what may go wrong."""

from __future__ import annotations

import socket
from email import message_from_bytes, policy

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.notices.mail import Mail, MailServer
from jupyterhub_gpu_reclaim.service.notices.notice import Notice, NotSent

NOTICE = Notice(
    id=7,
    kind="warned",
    at=1_700_000_000.0,
    session=SessionKey("ada", "tr\r\nBcc: eve@example.org\nain"),
    sentence="A warning was given.\nIdle for 31 min, ünused.",
    advice="Use it.",
    link="https://hub.example.org/services/gpu-reclaim/",
)
FROM = "JupyterHub <hub@example.org>"


def mail(port, to="{user}@example.org", **server):
    settings = {"host": "127.0.0.1", "port": port, "tls": "none"} | server
    return Mail(MailServer(**settings), FROM, to)


@pytest.mark.parametrize("tls", ["none", "starttls", "tls"])
async def test_notice_comes_as_a_message_that_says_all(serve_mail, tls):
    mailbox, port = await serve_mail(tls)
    await mail(port, tls=tls).send(NOTICE)
    (envelope,) = mailbox.messages
    assert envelope.rcpt_tos == ["ada@example.org"]
    assert envelope.mail_from == "hub@example.org"
    message = message_from_bytes(envelope.content, policy=policy.default)
    assert (
        message["Subject"].strip().startswith("About to be suspended: your JupyterHub")
    )
    assert message["Bcc"] is None
    assert message["Auto-Submitted"] == "auto-generated"
    text = message.get_content()
    for part in (NOTICE.sentence, NOTICE.advice, NOTICE.link):
        assert part in text.replace("\r\n", "\n")
    await mail(port, tls=tls).send(NOTICE)
    again = message_from_bytes(mailbox.messages[1].content, policy=policy.default)
    assert again["Message-ID"] == message["Message-ID"]


@pytest.mark.parametrize(
    "user", ["eve@evil.org,x", "a b", "<x", "", "a\nb", "ü", "x@y", "a,b"]
)
async def test_user_whose_name_makes_no_address_gets_no_message(serve_mail, user):
    mailbox, port = await serve_mail()
    notice = msgspec.structs.replace(NOTICE, session=SessionKey(user))
    with pytest.raises(NotSent) as caught:
        await mail(port).send(notice)
    assert not caught.value.retryable
    assert mailbox.messages == []


async def test_names_that_are_addresses_may_be_used_as_such(serve_mail):
    mailbox, port = await serve_mail()
    notice = msgspec.structs.replace(NOTICE, session=SessionKey("a.b+c@x-y.org"))
    await mail(port, to="{user}").send(notice)
    assert mailbox.messages[0].rcpt_tos == ["a.b+c@x-y.org"]


@pytest.mark.parametrize(
    ("refusal", "again"), [("450 later", True), ("550 no such user", False)]
)
async def test_refusal_of_the_server_says_whether_to_try_again(
    serve_mail, refusal, again
):
    mailbox, port = await serve_mail()
    mailbox.refusals = [refusal]
    with pytest.raises(NotSent) as caught:
        await mail(port).send(NOTICE)
    assert caught.value.retryable is again


async def test_login_is_used_and_a_wrong_one_is_not_repeated(serve_mail):
    mailbox, port = await serve_mail()
    await mail(port, login="hub", password="s3cret").send(NOTICE)
    assert mailbox.logins == [(b"hub", b"s3cret")]
    with pytest.raises(NotSent) as caught:
        await mail(port, login="hub", password="wrong").send(NOTICE)
    assert not caught.value.retryable
    assert "wrong" not in str(caught.value)


async def test_server_without_the_protection_asked_for_gets_nothing(serve_mail):
    mailbox, port = await serve_mail()
    with pytest.raises(NotSent) as caught:
        await mail(port, tls="starttls").send(NOTICE)
    assert not caught.value.retryable
    assert mailbox.messages == []


async def test_server_that_is_gone_or_silent_is_not_waited_for():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        with pytest.raises(NotSent) as gone:
            await mail(port).send(NOTICE)
        server.listen()  # and nobody ever answers
        with pytest.raises(NotSent) as silent:
            await mail(port, limit=0.2).send(NOTICE)
    assert silent.value.retryable
    assert gone.value.retryable
