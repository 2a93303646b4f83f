"""Apprise as a channel: real requests to a real receiver, no token in any text."""

from __future__ import annotations

import json

import pytest

from jupyterhub_gpu_reclaim.common.clock import ManualClock
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.notices.messenger import Messenger
from jupyterhub_gpu_reclaim.service.notices.notice import Notice, NotSent
from jupyterhub_gpu_reclaim.service.notices.settings import Notices

#: One of Apprise's plugins imports it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")


def notice(user="ada"):
    return Notice(
        id=7,
        kind="warned",
        at=5.0,
        session=SessionKey(user, "träin"),
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
