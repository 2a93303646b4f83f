"""Downloads of checkpoints: by whom, how many at a time, and whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import pytest
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPStreamClosedError
from tornado.tcpclient import TCPClient

from jupyterhub_gpu_reclaim.cli.sessions import saved_states
from jupyterhub_gpu_reclaim.common.errors import NotFound, Unreachable
from jupyterhub_gpu_reclaim.common.models import KeptState, Phase, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.service.conftest import FileInMemory
from tests.support.forms import Browser, Tags

ADA = SessionKey("ada")
PATH = "api/sessions/ada/-/saved/c1/export"
WORDS = "correct horse battery"
BODY = {"passphrase": WORDS}
KEPT = [KeptState(id="c1", generation=1, created=1.7e9, keeping="aside")]
BROKEN = Unreachable(Reason.AGENT_UNREACHABLE)


@pytest.fixture(autouse=True)
def ada(control):
    control.put("ada", phase=Phase.SUSPENDED, checkpoint="c2", kept=KEPT)


@pytest.fixture
def words(tmp_path):
    file = tmp_path / "words"
    file.write_text(f"{WORDS}\n")
    return f"--passphrase-file={file}"


# --- the API -------------------------------------------------------------------------
async def test_owner_and_managers_get_the_file_with_its_length(service, control):
    for token, by in (("token-ada", "ada"), ("token-root", "root")):
        answer = await service.call(PATH, token, "POST", BODY)
        assert (answer.code, answer.body) == (200, b"".join(control.file.all))
        assert answer.headers["Content-Length"] == str(control.file.length)
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert 'attachment; filename="c1.grx"' in answer.headers["Content-Disposition"]
        assert answer.headers["Cache-Control"] == "no-store"
        assert control.calls[-1] == ("export", ADA, "c1", by)
    assert control.passphrases == [WORDS, WORDS]


async def test_nobody_else_does_nor_learns_that_it_is_there(service, control, failure):
    there = await service.call(PATH, "token-bob", "POST", BODY)
    control.views.clear()
    missing = await service.call(PATH, "token-bob", "POST", BODY)
    assert (there.code, there.body) == (404, missing.body)
    assert (await service.call(PATH, "", "POST", BODY)).code == 401
    assert (await service.call(PATH, "token-stranger", "POST", BODY)).code == 403
    as_service = await service.call(PATH, "token-service-ada", "POST", BODY)
    assert as_service.code == 404
    assert control.calls == []


@pytest.mark.parametrize(
    ("path", "body", "code", "reason"),
    [
        (PATH, {}, 400, "invalid"),
        (PATH, "", 400, "invalid"),
        (PATH, {"passphrase": 7}, 400, "invalid"),
        (PATH, {"passphrase": "short"}, 400, "invalid"),
        (PATH, {"passphrase": "x" * 1025}, 400, "invalid"),
        (PATH.replace("c1", "c7"), BODY, 404, "checkpoint_missing"),
        (PATH.replace("c1", "..%2Fx"), BODY, 404, "checkpoint_missing"),
    ],
)
async def test_bad_order_is_refused_before_a_byte(
    service, failure, path, body, code, reason
):
    answer = await service.call(path, method="POST", body=body)
    assert (answer.code, failure(answer).code) == (code, reason)
    assert service.control.calls == []


async def test_each_has_one_at_a_time_and_all_together_a_few(service, control, failure):
    gate = asyncio.Event()
    control.file = slow = FileInMemory([b"head", b"rest"])
    pieces = slow.pieces

    async def held():
        async for piece in pieces():
            yield piece
            await gate.wait()

    slow.pieces = held
    first = asyncio.create_task(service.call(PATH, method="POST", body=BODY))
    while not slow.read:
        await asyncio.sleep(0.01)
    second = await service.call(PATH, method="POST", body=BODY)
    assert (second.code, failure(second).code) == (429, "too_many_downloads")
    other = asyncio.create_task(service.call(PATH, "token-root", "POST", BODY))
    gate.set()
    assert {(await task).code for task in (first, other)} == {200}
    assert (await service.call(PATH, method="POST", body=BODY)).code == 200


async def test_slow_reader_holds_up_what_is_read_and_is_dropped(service, control):
    object.__setattr__(service.context.limits, "stalled", 0.5)
    control.file = FileInMemory([b"x" * (1 << 20)] * 64)
    stream = await _asked(service)
    await stream.read_until(b"\r\n\r\n")
    async with asyncio.timeout(10):
        while service.context.exports._open:
            await asyncio.sleep(0.05)
    assert control.file.read < 32  # what sockets hold, and not all of it
    with pytest.raises(StreamClosedError):
        await stream.read_bytes(control.file.length)
    again = await service.call(PATH, method="POST", body=BODY)
    assert again.code == 200  # its place is free


async def test_reader_that_leaves_frees_its_place(service, control):
    control.file = FileInMemory([b"x" * (1 << 20)] * 64)
    (await _asked(service)).close()
    control.file = FileInMemory([b"head"])
    async with asyncio.timeout(10):
        while (await service.call(PATH, method="POST", body=BODY)).code != 200:
            await asyncio.sleep(0.05)


async def _asked(service):
    """A connection on which the file was asked for, and nothing was read."""
    host, _, rest = service.url.removeprefix("http://").partition("/")
    stream = await TCPClient().connect(*host.split(":"))
    body = f'{{"passphrase": "{WORDS}"}}'
    lines = (
        f"POST /{rest}{PATH} HTTP/1.1",
        f"Host: {host}",
        "Authorization: token token-ada",
        f"Content-Length: {len(body)}",
    )
    await stream.write("\r\n".join((*lines, "", body)).encode())
    return stream


async def test_failure_on_the_way_cuts_the_file(service, control, caplog):
    control.file = FileInMemory([b"head", BROKEN])
    with pytest.raises(HTTPStreamClosedError):  # it misses some of what was announced
        await service.call(PATH, method="POST", body=BODY)
    assert "the download of c1 ended" in caplog.text
    assert "Traceback" not in caplog.text


async def test_passphrase_is_in_no_log(service, control, caplog):
    caplog.set_level(logging.DEBUG)
    await service.call(PATH, method="POST", body=BODY)
    await service.call(PATH, method="POST", body={"passphrase": [WORDS]})
    control.views.clear()
    await service.call(PATH, method="POST", body=BODY)
    assert WORDS not in caplog.text


async def test_administrator_can_forbid_it_altogether(service, control, failure):
    object.__setattr__(service.context, "downloads", False)
    for token in ("token-ada", "token-root"):
        answer = await service.call(PATH, token, "POST", BODY)
        assert (answer.code, failure(answer).code) == (403, "downloads_off")
    browser = Browser(service, "token-ada")
    assert b"/export" not in (await browser.get("sessions/ada/-")).body
    fields = {"checkpoint": "c1", "passphrase": WORDS, "_xsrf": await browser.xsrf()}
    assert (await browser.post("sessions/ada/-/export", **fields)).code == 403
    assert control.calls == []


# --- the page ------------------------------------------------------------------------
async def test_form_of_the_sessions_page_downloads_it(service, control):
    browser = Browser(service, "token-ada")
    page = await browser.get("sessions/ada/-")
    assert "allow-downloads" in page.headers["Content-Security-Policy"]
    (form,) = [
        tag
        for tag in Tags(page.body.decode()).all("form")
        if tag["action"].endswith("/export")
    ]
    assert form["method"] == "post"
    fields = {"checkpoint": "c1", "passphrase": f" {WORDS} "}
    proof = {"_xsrf": await browser.xsrf()}
    answer = await browser.post("sessions/ada/-/export", **fields, **proof)
    assert (answer.code, answer.body) == (200, b"".join(control.file.all))
    assert control.passphrases == [f" {WORDS} "]  # spaces count
    mine = await browser.get("mine")
    assert "allow-downloads" not in mine.headers["Content-Security-Policy"]
    assert b"/export" not in mine.body


async def test_form_without_its_proof_or_of_another_user_gets_nothing(service, control):
    fields = {"checkpoint": "c1", "passphrase": WORDS}
    ada, bob = (Browser(service, f"token-{name}") for name in ("ada", "bob"))
    control.put("bob")
    assert (await ada.post("sessions/ada/-/export", **fields)).code in {401, 403}
    proof = {"_xsrf": await bob.xsrf()}
    assert (await bob.post("sessions/ada/-/export", **fields, **proof)).code == 404
    short = {"checkpoint": "c1", "passphrase": "short"}
    page = await ada.post("sessions/ada/-/export", **short, _xsrf=await ada.xsrf())
    assert (page.code, b"at least 8" in page.body) == (400, True)
    assert control.calls == []


# --- the command ---------------------------------------------------------------------
async def test_command_writes_the_whole_file_for_its_owner_alone(
    command, control, tmp_path, words
):
    file = tmp_path / "ada.grx"
    code, out, err = await command("export", "ada", "c1", str(file), words)
    assert (code, err) == (0, "")
    assert out == f"100 kB written to {file}\n"
    assert file.read_bytes() == b"".join(control.file.all)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, _, err = await command("export", "ada", "c1", str(file), words)
    assert (code, "there already" in err) == (1, True)
    assert len(control.calls) == 1


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ([b"head", BROKEN], "broke off"),
        (NotFound(Reason.CHECKPOINT_MISSING, checkpoint="c1"), "checkpoint_missing"),
    ],
)
async def test_command_leaves_no_part_of_a_file(
    command, control, tmp_path, words, what, told
):
    if isinstance(what, Exception):

        async def export(*_):
            raise what

        control.export = export
    else:
        control.file = FileInMemory(what)
    code, _, err = await command("export", "ada", "c1", str(tmp_path / "f"), words)
    assert code != 0
    assert told in err
    assert [path.name for path in tmp_path.iterdir()] == ["words"]


async def test_command_says_what_is_wrong_with_its_arguments(
    command, control, tmp_path, words
):
    target = ("export", "ada", "c1")
    missing = str(tmp_path / "none" / "f")
    code, _, err = await command(*target, missing, words)
    assert (code, "cannot be written: no such file" in err) == (1, True)
    there = str(tmp_path / "f")
    code, _, err = await command(*target, there, "--passphrase-file=/none")
    assert (code, "/none cannot be read: no such file" in err) == (1, True)
    assert control.calls == []


async def test_full_disk_is_a_sentence(command, control, words, tmp_path, monkeypatch):
    control.file = FileInMemory([b"x" * (1 << 20)] * 8)
    fdopen = os.fdopen

    def full(descriptor, mode):
        fdopen(descriptor, mode).close()
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr(saved_states.os, "fdopen", full)
    code, _, err = await command("export", "ada", "c1", str(tmp_path / "f"), words)
    assert (code, "no space left" in err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["words"]
