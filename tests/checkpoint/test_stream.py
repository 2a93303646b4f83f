"""The stream's protocol, spoken by a client of ours in CRIU's place."""

import os
import socket
import struct
import threading
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu.stream import (
    BLOCK,
    CAPTURE_SOCKET,
    RESTORE_SOCKET,
    CaptureServer,
    RestoreServer,
)
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason


class Client:
    """What CRIU does (criu/img-streamer.c)."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))

    def ask(self, name):
        body = b"\x0a" + bytes([len(name)]) + name.encode()
        self.socket.sendall(struct.pack("=I", len(body)) + body)

    def exists(self):
        (size,) = struct.unpack("=I", self.socket.recv(4))
        return self.socket.recv(size) == b"\x08\x01"

    def give(self, descriptor):
        socket.send_fds(self.socket, [b"\0"], [descriptor])
        os.close(descriptor)

    def sends(self, name):
        """The end into which that file is written."""
        read_end, write_end = os.pipe()
        self.ask(name)
        self.give(read_end)
        return write_end

    def wants(self, name):
        """The end from which that file is read."""
        self.ask(name)
        assert self.exists() is True
        read_end, write_end = os.pipe()
        self.give(write_end)
        return read_end

    def close(self):
        self.socket.close()


class Kept:
    def __init__(self, files, name):
        self.files, self.name, self.data = files, name, b""

    def write(self, data):
        self.data += bytes(data)

    def close(self):
        self.files[self.name] = self.data


@pytest.fixture
def serve(tmp_path):
    """Start a server, with its client."""

    def start(kind, files):
        server = kind(tmp_path, files)
        server.start()
        name = CAPTURE_SOCKET if kind is CaptureServer else RESTORE_SOCKET
        return server, Client(tmp_path / name)

    return start


@pytest.fixture
def capture(serve):
    """A server whose sinks are of that class, its client, and the files it has got."""

    def start(sink=None):
        files = {}
        return *serve(CaptureServer, lambda name: (sink or Kept)(files, name)), files

    return start


def finish(server, client):
    client.close()
    server.finish()
    return server.failure


def fail(server, client):
    """It ends by itself; its error."""
    assert client.socket.recv(1) == b""
    server.finish()
    client.close()
    return server.failure


def broken(end):
    with pytest.raises(BrokenPipeError):
        os.write(end, b"x")
    os.close(end)


def test_capture_files_arrive_whole_whatever_their_order(capture):
    server, client, files = capture()
    ends = {name: client.sends(name) for name in ("a.img", "b.img", "empty.img")}
    os.close(ends["empty.img"])
    data = os.urandom(3 * BLOCK + 7)
    writer = threading.Thread(target=lambda: os.write(ends["b.img"], data))
    writer.start()
    os.write(ends["a.img"], b"first ")
    writer.join()
    os.close(ends["b.img"])
    os.write(ends["a.img"], b"second")
    os.close(ends["a.img"])
    assert finish(server, client) is None
    assert files == {"a.img": b"first second", "b.img": data, "empty.img": b""}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        struct.pack("=I", 5) + b"hello",
        struct.pack("=I", 4) + b"\x0a\x09ab",
        struct.pack("=I", 4) + b"\x0a\x02\xff\xff",
        struct.pack("=I", 9) + b"\x0a",
    ],
)
def test_capture_garbage_is_an_error_and_no_traceback(capture, garbage):
    server, client, _ = capture()
    client.socket.sendall(garbage)
    client.socket.shutdown(socket.SHUT_WR)
    assert isinstance(fail(server, client), ReclaimError)


def test_capture_request_without_pipe_is_an_error(capture):
    server, client, _ = capture()
    client.ask("a.img")
    client.socket.sendall(b"\0")
    assert isinstance(fail(server, client), ReclaimError)


def test_capture_sink_error_is_kept_and_breaks_every_pipe(capture):
    class Broken(Kept):
        def write(self, data):
            raise ValueError("no room")

    server, client, _ = capture(Broken)
    ends = [client.sends(name) for name in ("a.img", "b.img")]
    os.write(ends[0], b"x" * BLOCK)
    assert str(fail(server, client)) == "no room"
    for end in ends:
        broken(end)


class Hangs(Kept):
    """A sink whose store does not answer until the test says so."""

    def __init__(self, answers):
        super().__init__({}, "")
        self.answers, self.asked = answers, threading.Event()

    def write(self, data):
        self.asked.set()
        assert self.answers.wait(60)
        super().write(data)


@pytest.fixture
def hangs(serve):
    """A server whose sink has that and does not answer; its client; and the pipe."""
    answers = threading.Event()

    def start(data):
        sink = Hangs(answers)
        server, client = serve(CaptureServer, lambda name: sink)
        write_end = client.sends("a.img")
        with os.fdopen(os.dup(write_end), "wb") as pipe:
            pipe.write(data)
        if len(data) < BLOCK:
            os.close(write_end)
        assert sink.asked.wait(60)
        return server, client, write_end

    yield start
    answers.set()


@pytest.fixture
def hanging(hangs):
    """All of the file has come."""
    return hangs(b"x")[:2]


def test_capture_that_is_called_off_breaks_the_pipe_of_a_sink_that_hangs(hangs):
    """Else CRIU waits at it, and the tree stands still as long as the store hangs."""
    server, client, write_end = hangs(bytes(BLOCK))
    server.fail(ReclaimError(Reason.CANCELLED))
    broken(write_end)
    finish(server, client)


def test_capture_that_is_called_off_does_not_wait_for_a_sink_that_hangs(hanging):
    server, client = hanging
    server.fail(ReclaimError(Reason.CANCELLED))
    client.close()
    begun = time.monotonic()
    server.finish()
    assert time.monotonic() - begun < 20
    assert server.failure.reason is Reason.CANCELLED


def test_capture_may_be_called_off_while_a_sink_is_waited_for(hanging):
    server, client = hanging
    client.close()  # CRIU has ended well
    begun, looks = time.monotonic(), []

    def look():
        looks.append(time.monotonic() - begun)
        if looks[-1] > 0.3:
            server.fail(ReclaimError(Reason.CANCELLED))

    server.finish(look)
    assert 0.3 < time.monotonic() - begun < 20
    assert server.failure.reason is Reason.CANCELLED


class Taken:
    """Empties its pipe by itself."""

    def take_pipe(self, pipe):
        os.set_blocking(pipe, True)
        self.data = os.read(pipe, BLOCK)
        raise ValueError("no room")


def test_capture_who_cannot_take_a_pipe_breaks_it(serve):
    sink = Taken()
    server, client = serve(CaptureServer, lambda name: sink)
    write_end = client.sends("pages-1.img")
    os.write(write_end, b"some")
    assert str(fail(server, client)) == "no room"
    assert sink.data == b"some"
    broken(write_end)


def test_capture_gives_memory_in_large_blocks(serve):
    files, sizes = {}, []

    class Sized(Kept):
        def write(self, data):
            sizes.append(len(data))
            super().write(data)

    server, client = serve(CaptureServer, lambda name: Sized(files, name))
    data = os.urandom(17 << 20)
    with os.fdopen(client.sends("pages-1.img"), "wb") as pipe:
        pipe.write(data)
    assert finish(server, client) is None
    assert files == {"pages-1.img": data}
    assert sizes == [16 << 20, 1 << 20]


def test_nobody_comes_finish_returns(tmp_path):
    server = CaptureServer(tmp_path, lambda name: Kept({}, name))
    server.start()
    server.finish()
    assert server.failure is None


def test_fail_before_anybody_comes_closes_the_door(tmp_path):
    server = CaptureServer(tmp_path, lambda name: Kept({}, name))
    server.start()
    server.fail(ValueError("called off"))
    server.finish()
    with socket.socket(socket.AF_UNIX) as late:
        assert late.connect_ex(str(tmp_path / CAPTURE_SOCKET)) != 0


def read_from(client, name):
    with os.fdopen(client.wants(name), "rb") as pipe:
        return pipe.read()


def test_restore_gives_files_and_says_what_is_missing(serve):
    data = os.urandom(2 * BLOCK + 5)
    files = {"a.img": [b"one ", memoryview(b"two")], "b.img": [data], "c.img": []}
    server, client = serve(RestoreServer, files.get)
    client.ask("missing.img")
    assert client.exists() is False
    received = {name: read_from(client, name) for name in files}
    assert finish(server, client) is None
    assert received == {"a.img": b"one two", "b.img": data, "c.img": b""}


def test_restore_gives_what_is_small_and_in_memory_without_a_thread(serve, monkeypatch):
    """On a busy machine every wait for a processor is long, and images are many."""
    begun = []
    start = threading.Thread.start
    record = lambda thread: begun.append(thread.name) or start(thread)  # noqa: E731
    monkeypatch.setattr(threading.Thread, "start", record)
    files = {"small.img": [b"a" * 5000], "large.img": [b"b" * (3 * BLOCK)]}
    files["stored.img"] = iter([b"c"])
    server, client = serve(RestoreServer, files.get)
    lengths = [len(read_from(client, name)) for name in files]
    finish(server, client)
    assert lengths == [5000, 3 * BLOCK, 1]
    assert begun == ["criu-stream", "criu-large.img", "criu-stored.img"]


def test_restore_reader_that_stops_early_is_no_error(serve):
    server, client = serve(RestoreServer, lambda name: [b"x" * BLOCK] * 4)
    read_end = client.wants("a.img")
    os.read(read_end, 10)
    os.close(read_end)
    assert finish(server, client) is None


def test_restore_source_error_cuts_off(serve):
    def source(name):
        yield b"half"
        raise ValueError("damaged")

    server, client = serve(RestoreServer, source)
    assert read_from(client, "a.img") == b"half"
    assert str(fail(server, client)) == "damaged"
