"""Server-sent events: the state first, then changes, only what one may see."""

import asyncio
import json

import pytest
from tornado.tcpclient import TCPClient

PATH = "/services/gpu-reclaim/api/events"


class Reader:
    """An event stream as a browser reads it, over a socket of its own."""

    def __init__(self, stream) -> None:
        self.stream = stream

    async def block(self) -> dict[str, str]:
        """The next event, or comment, as its fields."""
        async with asyncio.timeout(60):
            text = (await self.stream.read_until(b"\n\n")).decode()
        fields = [line.partition(":") for line in text.splitlines() if line]
        # a chunk's length in hexadecimal stands on a line of its own
        return {name: value.strip() for name, colon, value in fields if colon}

    async def event(self) -> tuple[str, object]:
        while True:
            fields = await self.block()
            if "event" in fields:
                return fields["event"], json.loads(fields["data"])

    async def status(self) -> int:
        async with asyncio.timeout(60):
            head = (await self.stream.read_until(b"\r\n\r\n")).decode()
        return int(head.split()[1])


@pytest.fixture
async def connect(service):
    streams = []

    async def opened(token: str = "token-ada") -> Reader:
        port = int(service.url.split(":")[2].partition("/")[0])
        stream = await TCPClient().connect("127.0.0.1", port)
        streams.append(stream)
        await stream.write(
            f"GET {PATH} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: token {token}\r\n\r\n".encode()
        )
        return Reader(stream)

    yield opened
    for stream in streams:
        stream.close()


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_events_begin_with_all_that_one_may_see(service, connect):
    service.control.put("ada")
    service.control.put("bob")
    reader = await connect()
    assert await reader.status() == 200
    name, view = await reader.event()
    assert name == "session"
    assert view["key"]["user"] == "ada"


async def test_events_of_others_are_not_sent(service, connect):
    service.control.put("ada")
    reader = await connect()
    await reader.status()
    await reader.event()
    service.control.put("bob", generation=1)
    service.control.put("ada", generation=2)
    name, view = await reader.event()
    assert (name, view["key"]["user"], view["generation"]) == ("session", "ada", 2)


async def test_events_to_a_manager_are_all(service, connect):
    reader = await connect("token-root")
    await reader.status()
    await reader.block()  # it has begun
    service.control.put("bob", generation=1)
    name, view = await reader.event()
    assert (name, view["key"]["user"]) == ("session", "bob")


async def test_silent_stream_shows_that_it_lives(service, connect):
    reader = await connect()
    await reader.status()
    await reader.block()
    assert "" in await reader.block()  # a comment has no field name


async def test_reader_who_leaves_is_forgotten(service, connect):
    reader = await connect()
    await reader.status()
    await until(lambda: service.control.readers)
    reader.stream.close()
    await until(lambda: not service.control.readers)
    assert service.context.streams._open.total() == 0


async def test_reader_who_is_dropped_by_the_source_gets_an_end(service, connect):
    reader = await connect()
    await reader.status()
    await reader.block()  # it has begun
    service.control.readers[0].put_nowait(None)
    async with asyncio.timeout(60):
        rest = await reader.stream.read_until(b"0\r\n\r\n")  # the last chunk
    assert rest


async def test_too_many_streams_of_one_person_are_refused(service, connect):
    first = [await connect() for _ in range(2)]
    for reader in first:
        assert await reader.status() == 200
    third = await connect()
    assert await third.status() == 429
    first[0].stream.close()
    await until(lambda: service.context.streams._open.total() == 1)
    again = await connect()
    assert await again.status() == 200


async def test_events_without_a_login_are_refused(connect):
    reader = await connect("nobody")
    assert await reader.status() == 401
