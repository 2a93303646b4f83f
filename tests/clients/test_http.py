"""What all clients share: a caller that leaves is heard by the far part, and no log."""

import asyncio
import gc
import logging

import pytest
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.http.client import Connection
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.support.served import served


class Drip(RequestHandler):
    """A line every few milliseconds, until its reader leaves."""

    left = asyncio.Event()

    async def get(self):
        while not Drip.left.is_set():
            self.write("line\n")
            await self.flush()
            await asyncio.sleep(0.01)

    async def post(self):
        await Drip.left.wait()

    def on_connection_close(self):
        super().on_connection_close()
        Drip.left.set()


@pytest.fixture
async def connection():
    Drip.left = asyncio.Event()
    async with served(Application([(".*", Drip)])) as port:
        connection = Connection(
            f"http://127.0.0.1:{port}", dict, Reason.HUB_UNREACHABLE
        )
        yield connection
        connection.close()


@pytest.fixture
def errors(caplog):
    """What was logged as a warning or worse, after everybody has gone."""

    async def look() -> list[str]:
        await asyncio.sleep(0.1)
        gc.collect()
        records = [r for r in caplog.records if r.levelno >= logging.WARNING]
        return [record.getMessage() for record in records]

    return look


async def test_stream_whose_reader_leaves_is_let_go_in_silence(connection, errors):
    lines = connection.lines("GET", "/", silence=5)
    assert await anext(lines) == b"line"
    await lines.aclose()
    async with asyncio.timeout(60):
        await Drip.left.wait()
    assert await errors() == []


async def test_stream_whose_reader_is_cancelled_is_let_go_in_silence(
    connection, errors
):
    begun = asyncio.Event()

    async def read():
        async for _ in connection.lines("GET", "/", silence=5):
            begun.set()

    task = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await begun.wait()
        task.cancel()
        await Drip.left.wait()
    assert await errors() == []


async def test_call_whose_caller_is_cancelled_ends_in_silence(connection, errors):
    task = asyncio.create_task(connection.ask("POST", "/", limit=0.3))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0.4)  # the request's own limit
    assert await errors() == []
