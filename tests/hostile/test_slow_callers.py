"""Connections that strangers open and then say little or nothing, without a login."""

import asyncio
import contextlib
import resource
import time

import pytest
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.http import server
from jupyterhub_gpu_reclaim.common.http.server import Door, raise_file_limit
from jupyterhub_gpu_reclaim.node.http.routes import make_application
from tests.service.conftest import service

__all__ = ["service"]

FILES = 400  #: as if the process might have so many: 100 may wait
SLOW_POST = (
    b"POST /services/gpu-reclaim/api/sessions/ada/-/suspend HTTP/1.1\r\n"
    b"Host: x\r\nContent-Length: 60000\r\n\r\n{"
)


@pytest.fixture
def short_limits(monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(server, "BODY_SECONDS", 0.5)


@contextlib.asynccontextmanager
async def serving(application):
    server = Door(application, max_body=65536, files=FILES)
    server.listen(0, "127.0.0.1")
    try:
        yield next(iter(server._sockets.values())).getsockname()[1], server
    finally:
        server.stop()
        await server.close_all_connections()


async def asked(port: int, path: str = "/healthz") -> bytes:
    """One quick call of somebody who has a reason."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


async def crowd(port: int, said: bytes, many: int) -> list:
    pairs = []
    for _ in range(many):
        pair = await asyncio.open_connection("127.0.0.1", port)
        pair[1].write(said)
        pairs.append(pair)
    return pairs


async def posted(port: int, said: list[bytes]) -> bytes:
    """What is answered to all that, which is written to its end first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in said:
        writer.write(piece)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(4096), 60)
    writer.close()
    return answer


@pytest.mark.parametrize("size", [65537, 10 << 20, 100 << 20])
@pytest.mark.parametrize("chunked", [False, True])
async def test_body_that_is_too_long_is_answered_so_and_kept_nowhere(
    service, size, chunked
):
    head = (
        b"POST /services/gpu-reclaim/api/sessions/ada/-/suspend HTTP/1.1\r\nHost: x\r\n"
    )
    piece = bytes(65536)
    pieces = [piece] * (size // len(piece)) + [piece[: size % len(piece)]]
    if chunked:
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        pieces = [b"%x\r\n%s\r\n" % (len(one), one) for one in pieces if one]
        pieces += [b"0\r\n\r\n"]
    else:
        head += b"Content-Length: %d\r\n\r\n" % size
    agent = make_application(None, "token-of-the-agent")
    for application in (service.app, agent):
        async with serving(application) as (port, _):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answer = await posted(port, [head, *pieces])
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert answer.startswith(b"HTTP/1.1 413 Content Too Large\r\n")
            assert b'"code":"invalid"' in answer
            assert after - before < 50_000  # kB


@pytest.mark.parametrize("said", [b"", b"POST / HT", SLOW_POST])
async def test_service_answers_while_a_thousand_slow_calls_are_open(service, said):
    async with serving(service.app) as (port, server):
        pairs = await crowd(port, said, 1050)
        status = await asked(port, "/services/gpu-reclaim/healthz")
        assert status == b"HTTP/1.1 200 OK"
        assert len(server._connections) <= FILES // 2
        for _, writer in pairs:
            writer.close()


async def test_agent_answers_while_many_slow_calls_are_open():
    application = make_application(None, "token-of-the-agent")
    async with serving(application) as (port, _):
        pairs = await crowd(port, SLOW_POST, 300)
        assert await asked(port) == b"HTTP/1.1 200 OK"
        for _, writer in pairs:
            writer.close()


@pytest.mark.parametrize("said", [b"", b"POST / HT", SLOW_POST])
async def test_slow_call_is_hung_up_on(service, said, short_limits):
    async with serving(service.app) as (port, server):
        begun = time.monotonic()
        ((reader, writer),) = await crowd(port, said, 1)
        async with asyncio.timeout(60):
            await reader.read()
        assert time.monotonic() - begun >= 0.4
        writer.close()
        assert not server._waiting


class Held(RequestHandler):
    """An answer that takes its time, as a stream of events does."""

    async def get(self) -> None:
        self.write("begun\n")
        await self.flush()
        await self.settings["hold"].wait()
        self.write("ended\n")


async def test_answer_under_way_is_not_cut_off_by_a_crowd():
    hold = asyncio.Event()
    application = Application([(r"/", Held)], hold=hold)
    async with serving(application) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await reader.readuntil(b"begun\n")
        pairs = await crowd(port, b"", 300)
        hold.set()
        async with asyncio.timeout(60):
            assert b"ended" in await reader.read()
        for _, other in [(reader, writer), *pairs]:
            other.close()


async def test_body_that_is_too_long_is_refused_before_it_is_read(
    service, short_limits
):
    async with serving(service.app) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(SLOW_POST.replace(b"60000", b"6000000000"))
        async with asyncio.timeout(60):
            assert b"200" not in await reader.read()
        writer.close()


def test_file_limit_is_raised_to_what_is_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 512), before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
