"""The stream's protocol, spoken by a client of ours in CRIU's place."""

import array
import os
import select
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
        rights = array.array("i", [descriptor])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        self.socket.sendmsg([b"\0"], ancillary)
        os.close(descriptor)

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
def capture(tmp_path):
    files = {}
    server = CaptureServer(tmp_path, lambda name: Kept(files, name))
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    yield server, client, files
    client.close()
    server.finish()


def test_capture_files_arrive_whole_whatever_their_order(capture):
    server, client, files = capture
    ends = {}
    for name in ("a.img", "b.img", "empty.img"):
        read_end, ends[name] = os.pipe()
        client.ask(name)
        client.give(read_end)
    os.close(ends["empty.img"])
    data = os.urandom(3 * BLOCK + 7)
    writer = threading.Thread(target=lambda: os.write(ends["b.img"], data))
    writer.start()
    os.write(ends["a.img"], b"first ")
    writer.join()
    os.close(ends["b.img"])
    os.write(ends["a.img"], b"second")
    os.close(ends["a.img"])
    client.close()
    server.finish()
    assert server.failure is None
    assert files == {"a.img": b"first second", "b.img": data, "empty.img": b""}
    assert server.bytes == len(data) + 12


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
def test_capture_garbage_is_an_error_and_no_traceback(tmp_path, garbage):
    server = CaptureServer(tmp_path, lambda name: Kept({}, name))
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    client.socket.sendall(garbage)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.socket.recv(1) == b""
    server.finish()
    client.close()
    assert isinstance(server.failure, ReclaimError)


def test_capture_request_without_pipe_is_an_error(tmp_path):
    server = CaptureServer(tmp_path, lambda name: Kept({}, name))
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    client.ask("a.img")
    client.socket.sendall(b"\0")
    assert client.socket.recv(1) == b""
    server.finish()
    client.close()
    assert isinstance(server.failure, ReclaimError)


def test_capture_sink_error_is_kept_and_breaks_every_pipe(tmp_path):
    class Broken(Kept):
        def write(self, data):
            raise ValueError("no room")

    server = CaptureServer(tmp_path, lambda name: Broken({}, name))
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    ends = []
    for name in ("a.img", "b.img"):
        read_end, write_end = os.pipe()
        ends.append(write_end)
        client.ask(name)
        client.give(read_end)
    os.write(ends[0], b"x" * BLOCK)
    assert client.socket.recv(1) == b""
    server.finish()
    client.close()
    assert str(server.failure) == "no room"
    for end in ends:
        with pytest.raises(BrokenPipeError):
            os.write(end, b"x")
        os.close(end)


class Hangs(Kept):
    """A sink whose store does not answer until the test says so."""

    def __init__(self, answers):
        super().__init__({}, "")
        self.answers, self.asked = answers, threading.Event()

    def write(self, data):
        self.asked.set()
        assert self.answers.wait(60)
        super().write(data)


def served(folder, sink, data):
    """A server, its client, and the end of a pipe out of which that has come."""
    server = CaptureServer(folder, lambda name: sink)
    server.start()
    client = Client(folder / CAPTURE_SOCKET)
    read_end, write_end = os.pipe()
    client.ask("a.img")
    client.give(read_end)
    with os.fdopen(os.dup(write_end), "wb") as pipe:
        pipe.write(data)
    return server, client, write_end


@pytest.fixture
def hanging(tmp_path):
    """A server whose sink has something, and does not come to its end before it may."""
    answers = threading.Event()
    sink = Hangs(answers)
    server, client, write_end = served(tmp_path, sink, b"x")
    os.close(write_end)
    assert sink.asked.wait(60)
    yield server, client
    wake = server.fileno()
    os.fstat(wake)  # it is theirs until they have ended
    answers.set()
    _until_closed(wake)


def test_capture_that_is_called_off_breaks_the_pipe_of_a_sink_that_hangs(tmp_path):
    """Else CRIU waits at it, and the tree stands still as long as the store hangs."""
    answers = threading.Event()
    sink = Hangs(answers)
    server, client, write_end = served(tmp_path, sink, bytes(BLOCK))
    assert sink.asked.wait(60)
    server.fail(ReclaimError(Reason.CANCELLED))
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"y")
    os.close(write_end)
    client.close()
    wake = server.fileno()
    server.finish()
    answers.set()
    _until_closed(wake)


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


def _until_closed(descriptor):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.fstat(descriptor)
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f"{descriptor} is still open")


class Taken(Kept):
    """Empties its pipe by itself, as the store's does, until it is told to stop."""

    def __init__(self, files, name):
        super().__init__(files, name)
        self.told = threading.Event()
        self.begun = threading.Event()

    def take_pipe(self, pipe):
        self.begun.set()
        copy = os.dup(pipe)
        with os.fdopen(copy, "rb", buffering=0) as end:
            while not self.told.is_set():
                if not select.select([end], [], [], 0.05)[0]:
                    continue
                data = end.read(BLOCK)
                if not data:
                    return len(self.data)
                self.data += data
        raise InterruptedError

    def cancel(self):
        self.told.set()


def test_capture_pages_are_handed_over_and_nothing_else(tmp_path):
    files, sinks = {}, {}

    def open_sink(name):
        return sinks.setdefault(name, Taken(files, name))

    server = CaptureServer(tmp_path, open_sink)
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    data = os.urandom(2 * BLOCK + 4096)
    for name in ("pages-1.img", "mm-1.img"):
        read_end, write_end = os.pipe()
        client.ask(name)
        client.give(read_end)
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(data)
    client.close()
    server.finish()
    assert server.failure is None
    assert files == {"pages-1.img": data, "mm-1.img": data}
    assert server.bytes == 2 * len(data)
    assert sinks["pages-1.img"].begun.is_set()
    assert not sinks["mm-1.img"].begun.is_set()


def test_capture_that_fails_ends_who_empties_a_pipe(tmp_path):
    sink = Taken({}, "pages-1.img")
    server = CaptureServer(tmp_path, lambda name: sink)
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    read_end, write_end = os.pipe()
    client.ask("pages-1.img")
    client.give(read_end)
    os.write(write_end, b"x")
    assert sink.begun.wait(60)
    server.fail(ValueError("called off"))
    server.finish()
    client.close()
    assert str(server.failure) == "called off"
    assert sink.files == {}
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"x")
    os.close(write_end)


def test_capture_who_cannot_take_a_pipe_breaks_it(tmp_path):
    class Broken(Taken):
        def take_pipe(self, pipe):
            raise ValueError("no room")

    server = CaptureServer(tmp_path, lambda name: Broken({}, name))
    server.start()
    client = Client(tmp_path / CAPTURE_SOCKET)
    read_end, write_end = os.pipe()
    client.ask("pages-1.img")
    client.give(read_end)
    assert client.socket.recv(1) == b""
    server.finish()
    client.close()
    assert str(server.failure) == "no room"
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"x")
    os.close(write_end)


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
    client.ask(name)
    assert client.exists() is True
    read_end, write_end = os.pipe()
    client.give(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        return pipe.read()


def test_restore_gives_files_and_says_what_is_missing(tmp_path):
    data = os.urandom(2 * BLOCK + 5)
    files = {"a.img": [b"one ", memoryview(b"two")], "b.img": [data], "c.img": []}
    server = RestoreServer(tmp_path, files.get)
    server.start()
    client = Client(tmp_path / RESTORE_SOCKET)
    client.ask("missing.img")
    assert client.exists() is False
    received = {name: read_from(client, name) for name in files}
    client.close()
    server.finish()
    assert server.failure is None
    assert received == {"a.img": b"one two", "b.img": data, "c.img": b""}
    assert server.bytes == len(data) + 7


def test_restore_gives_what_is_small_and_in_memory_without_a_thread(
    tmp_path, monkeypatch
):
    """On a busy machine every wait for a processor is long, and images are many."""
    begun = []
    start = threading.Thread.start
    record = lambda thread: begun.append(thread.name) or start(thread)  # noqa: E731
    monkeypatch.setattr(threading.Thread, "start", record)
    files = {"small.img": [b"a" * 5000], "large.img": [b"b" * (3 * BLOCK)]}
    files["stored.img"] = iter([b"c"])
    server = RestoreServer(tmp_path, files.get)
    server.start()
    client = Client(tmp_path / RESTORE_SOCKET)
    lengths = [len(read_from(client, name)) for name in files]
    client.close()
    server.finish()
    assert lengths == [5000, 3 * BLOCK, 1]
    assert server.bytes == sum(lengths)
    assert begun == ["criu-stream", "criu-large.img", "criu-stored.img"]


def test_restore_reader_that_stops_early_is_no_error(tmp_path):
    server = RestoreServer(tmp_path, lambda name: [b"x" * BLOCK] * 4)
    server.start()
    client = Client(tmp_path / RESTORE_SOCKET)
    client.ask("a.img")
    assert client.exists()
    read_end, write_end = os.pipe()
    client.give(write_end)
    os.read(read_end, 10)
    os.close(read_end)
    client.close()
    server.finish()
    assert server.failure is None


def test_restore_source_error_cuts_off(tmp_path):
    def source(name):
        yield b"half"
        raise ValueError("damaged")

    server = RestoreServer(tmp_path, source)
    server.start()
    client = Client(tmp_path / RESTORE_SOCKET)
    client.ask("a.img")
    assert client.exists()
    read_end, write_end = os.pipe()
    client.give(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"half"
    assert client.socket.recv(1) == b""
    server.finish()
    client.close()
    assert str(server.failure) == "damaged"
