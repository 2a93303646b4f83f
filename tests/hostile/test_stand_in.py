"""Attacks on what answers while the service does not: it has no login to ask for."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket

import pytest

from jupyterhub_gpu_reclaim.service.process import standin
from jupyterhub_gpu_reclaim.service.process.standin import StandIn

PREFIX = "/services/gpu-reclaim/"


@pytest.fixture
async def stand_in():
    """One at an address of its own, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        made = StandIn([listening], PREFIX)
        made.begin()
        yield made, listening.getsockname()[1]
        made.end()


async def say(port: int, data: bytes) -> bytes:
    """Send it and hear all that is said to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_sentence_with_markup_is_shown_and_not_run(stand_in):
    made, port = stand_in
    made.why = "idle_after must be a number, not '<script>alert(1)</script>'."
    page = await say(port, get(PREFIX))
    assert page.startswith(b"HTTP/1.1 200 ")
    assert b"<script>" not in page
    assert b"&lt;script&gt;" in page
    assert b"default-src 'none'" in page


@pytest.mark.parametrize(
    "words",
    [
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET " + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: \xff\xfe\r\n\r\n",
        b"GET /services/gpu-reclaim/static/%00 HTTP/1.1\r\n\r\n",
    ],
)
async def test_words_that_are_no_request_end_their_connection_alone(stand_in, words):
    _, port = stand_in
    said = await say(port, words)
    assert said == b"" or said.startswith(b"HTTP/1.1 503 ")
    assert b"200 OK" in await say(port, get(f"{PREFIX}healthz"))


async def test_more_connections_than_anybody_needs_are_closed_and_end_by_themselves(
    stand_in, monkeypatch
):
    monkeypatch.setattr(standin, "PATIENCE", 1.0)
    _, port = stand_in
    slow = [
        await asyncio.open_connection("127.0.0.1", port)
        for _ in range(standin.MOST + 50)
    ]
    for reader, _ in slow:  # that say nothing: all of them are closed in time
        assert await asyncio.wait_for(reader.read(), 30) == b""
    for _, writer in slow:
        writer.close()
    assert b"200 OK" in await say(port, get(f"{PREFIX}healthz"))


async def test_large_body_is_answered_and_not_kept(stand_in):
    _, port = stand_in
    body = b"x" * 60_000
    head = (
        f"POST {PREFIX}api/spawner/plan-start HTTP/1.1\r\nContent-Length: {len(body)}"
        "\r\nAuthorization: token guess\r\n\r\n"
    )
    said = await say(port, head.encode() + body)
    status, _, answer = said.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer)["code"] == "service_starting"


async def test_answer_never_says_that_a_session_may_start_cold(stand_in):
    made, port = stand_in
    for why in ("", "The journal is away."):
        made.why = why
        for call in ("plan-start", "plan-stop", "release", "forget"):
            said = await say(port, get(f"{PREFIX}api/spawner/{call}"))
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b'"action"' not in said


async def test_caller_at_the_moment_of_a_change_is_answered(stand_in):
    """By it or by who follows it; asyncio's own server loses whom it accepts then."""
    made, port = stand_in
    asking = True

    async def changes() -> None:
        for turn in itertools.count():
            made.begin()
            for _ in range(1 + turn % 5):
                await asyncio.sleep(0)
            if not asking:
                return
            made.end()
            await asyncio.sleep(0)

    changing = asyncio.ensure_future(changes())
    try:
        for _ in range(300):
            answer = await asyncio.wait_for(say(port, get(PREFIX)), 3)
            assert answer.startswith(b"HTTP/1.1 200 ")
    finally:
        asking = False
        await changing
