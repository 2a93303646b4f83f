"""Apprise as a channel: real requests to a real receiver, no token in any text."""

from __future__ import annotations

import json
from email import message_from_bytes, policy

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.notices.messenger import Messenger
from jupyterhub_gpu_reclaim.service.notices.notice import Notice, NotSent
from jupyterhub_gpu_reclaim.service.notices.settings import Notices
from tests.support.manual_clock import ManualClock

#: One of Apprise's plugins imports it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


def notice(user="ada", server="träin"):
    return Notice(
        id=7,
        kind="warned",
        at=5.0,
        session=SessionKey(user, server),
        sentence="A <b>warning</b> was given.",
        advice="Use it.",
        link="https://hub.example.org/",
    )


def address(receiver, rest=""):
    return receiver.url.replace("http:", "json:").partition("/hook")[0] + rest


async def test_every_address_gets_subject_and_sentence(receiver):
    messenger = Messenger([address(receiver, "/one"), address(receiver, "/two")], 10.0)
    await messenger.send(notice())
    paths = {uri for uri, _, _ in receiver.requests}
    assert paths == {"/one", "/two"}
    body = json.loads(receiver.requests[0][2])
    assert body["title"] == "About to be suspended: your JupyterHub session träin"
    assert body["message"].startswith("A <b>warning</b> was given.\n\nUse it.")
    assert body["message"].endswith("https://hub.example.org/")


async def test_name_of_a_user_stays_one_part_of_an_address(receiver):
    messenger = Messenger([address(receiver, "/to/{user}/end")], 10.0)
    await messenger.send(notice("eve/../x?to=all&y=#ä"))
    ((uri, _, _),) = receiver.requests
    assert uri.startswith("/to/eve%2F..%2Fx%3Fto=all")
    assert uri.endswith("/end")
    assert "?" not in uri


async def test_receiver_that_refuses_is_tried_again_and_not_named(receiver):
    receiver.statuses = [500]
    with pytest.raises(NotSent) as caught:
        await Messenger([address(receiver, "/token-of-ours")], 10.0).send(notice())
    assert caught.value.retryable
    assert "token" not in str(caught.value)


async def test_receiver_that_is_silent_costs_its_limit_and_no_more(receiver):
    receiver.silent = True
    with pytest.raises(NotSent):
        await Messenger([address(receiver, "/x")], 0.3).send(notice())


def mail(port, to="{user}@example.org", login="", scheme="mailto", more=""):
    start = f"{scheme}://{login}127.0.0.1:{port}/?from=JupyterHub%20<hub@example.org>"
    return Messenger([f"{start}&to={to}{more}"], 10.0)


@pytest.mark.parametrize(
    ("tls", "scheme", "mode"),
    [("none", "mailto", ""), ("starttls", "mailtos", ""), ("tls", "mailtos", "ssl")],
)
async def test_mail_server_gets_a_message_that_says_all(serve_mail, tls, scheme, mode):
    mailbox, port = await serve_mail(tls)
    more = "&+Auto-Submitted=auto-generated" + (mode and f"&mode={mode}")
    told = notice(server="x\r\nBcc: eve@example.org\ny")
    await mail(port, login="hub:s3cret@", scheme=scheme, more=more).send(told)
    (envelope,) = mailbox.messages
    assert mailbox.logins == [(b"hub", b"s3cret")]
    assert envelope.rcpt_tos == ["ada@example.org"]
    assert envelope.mail_from == "hub@example.org"
    message = message_from_bytes(envelope.content, policy=policy.default)
    assert message["Subject"].startswith("About to be suspended: your JupyterHub")
    assert message["Bcc"] is None
    assert message["Auto-Submitted"] == "auto-generated"
    text = message.get_content().replace("\r\n", "\n")
    for part in (told.sentence, told.advice, told.link):
        assert part in text


@pytest.mark.parametrize(
    "user", ["eve@evil.org,x", "a b", "<x", "a\nb", "ü", "x@y", "a,b", "x:y", "o'b"]
)
async def test_user_whose_name_is_no_single_receiver_gets_no_mail(serve_mail, user):
    mailbox, port = await serve_mail()
    with pytest.raises(NotSent) as caught:
        await mail(port).send(notice(user))
    assert not caught.value.retryable
    assert mailbox.messages == []


async def test_names_that_are_mail_addresses_may_be_used_as_such(serve_mail):
    mailbox, port = await serve_mail()
    await mail(port, to="{user}").send(notice("a.b+c@x-y.org"))
    assert mailbox.messages[0].rcpt_tos == ["a.b+c@x-y.org"]


async def test_mail_server_without_the_protection_asked_for_gets_nothing(serve_mail):
    mailbox, port = await serve_mail()
    with pytest.raises(NotSent):
        await mail(port, scheme="mailtos").send(notice())
    assert mailbox.messages == []


def test_file_of_addresses_makes_a_channel(tmp_path):
    file = tmp_path / "addresses"
    file.write_text("# our room\n\n  json://127.0.0.1:1/hook \n")
    found = Notices(messenger_file=str(file)).channels(ManualClock())
    assert [channel.name for channel in found] == ["messenger"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# nothing\n", "has no address"),
        ("json://127.0.0.1:1/a\nnever://token-of-ours\n", "address 2 is none"),
    ],
)
def test_file_that_makes_no_sense_is_refused_without_its_tokens(tmp_path, text, says):
    file = tmp_path / "addresses"
    file.write_text(text)
    with pytest.raises(Refused) as caught:
        Notices(messenger_file=str(file)).channels(ManualClock())
    assert says in str(caught.value)
    assert "token" not in str(caught.value)


def test_missing_library_is_said_with_the_command_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    file = tmp_path / "addresses"
    file.write_text("json://127.0.0.1:1/hook\n")
    with pytest.raises(Refused, match=r"pip install jupyterhub-gpu-reclaim\[notices\]"):
        Notices(messenger_file=str(file)).channels(ManualClock())
