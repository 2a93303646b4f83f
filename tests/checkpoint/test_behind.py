"""Pages that wait for the store while CRIU goes on."""

import contextlib
import os
import signal
import subprocess
import threading

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.criu.stream import BLOCK
from jupyterhub_gpu_reclaim.checkpoint.memory import behind
from jupyterhub_gpu_reclaim.checkpoint.memory.behind import MemoryBehind
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RolledBack, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes, procfs
from tests.checkpoint.conftest import wait_for

LARGE = os.urandom(3 * BLOCK) + b"the end"


class Store:
    """A sink that takes nothing before it may, and fails if it is to."""

    def __init__(self) -> None:
        self.may, self.fails = threading.Event(), False
        self.taken, self.closed = b"", False

    def write(self, data):
        self.taken += data

    def take_pipe(self, pipe):
        self.may.wait(20)
        if self.fails:
            raise StoreError(Reason.STORE_FULL, needed="more", free="nothing")
        with os.fdopen(pipe, "rb", closefd=False) as file:
            self.taken = file.read()
        return len(self.taken)

    def cancel(self):
        self.fails = True
        self.may.set()

    def close(self):
        self.closed = True


def open_files() -> int:
    return procfs.count_descriptors(os.getpid(), 10_000)


def feed(sink, data: bytes) -> threading.Thread:
    """CRIU, and the thread of the stream."""
    end, begin = os.pipe()

    def give():
        with contextlib.suppress(BrokenPipeError), os.fdopen(begin, "wb") as file:
            file.write(data)

    def take():
        try:
            took.append(sink.take_pipe(end))
        except ReclaimError as error:
            took.append(error)
        os.close(end)

    took: list = []
    giving, taking = threading.Thread(target=give), threading.Thread(target=take)
    giving.start()
    taking.start()
    taking.took = took
    return taking


@pytest.fixture
def stores():
    made = {}
    yield lambda name: made.setdefault(name, Store())
    for store in made.values():
        store.may.set()


def test_criu_does_not_wait_for_the_store(stores):
    late = MemoryBehind(stores)
    first = feed(late("pages-1.img"), LARGE)
    first.join(20)
    second = feed(late("pages-2.img"), LARGE[::-1])
    second.join(20)
    assert first.took == second.took == [len(LARGE)]
    one, other = stores("pages-1.img"), stores("pages-2.img")
    assert not one.taken
    other.may.set()  # what comes later waits for what came before
    one.may.set()
    late.wait(Cancel())
    assert (one.taken, other.taken) == (LARGE, LARGE[::-1])
    assert one.closed
    assert other.closed


def test_small_process_is_with_the_store_at_once(stores):
    late = MemoryBehind(stores)
    stores("pages-1.img").may.set()
    feed(late("pages-1.img"), b"few").join(20)
    assert stores("pages-1.img").taken == b"few"
    assert stores("pages-1.img").closed


def test_what_is_no_memory_goes_its_own_way(stores):
    assert MemoryBehind(stores)("files.img") is stores("files.img")


def test_no_more_waits_than_there_is_room_for(stores, monkeypatch):
    monkeypatch.setattr(behind, "MOST_PIPES", 2)
    late = MemoryBehind(stores)
    taking = feed(late("pages-1.img"), LARGE * 4)
    taking.join(0.5)
    assert taking.is_alive()
    stores("pages-1.img").may.set()
    taking.join(20)
    late.wait(Cancel())
    assert stores("pages-1.img").taken == LARGE * 4


@pytest.mark.parametrize("rooms", [2, 512])
def test_store_that_fails_ends_criu_or_the_wait(stores, monkeypatch, rooms):
    monkeypatch.setattr(behind, "MOST_PIPES", rooms)
    cancel = Cancel()
    before = open_files()
    late = MemoryBehind(stores)
    taking = feed(late("pages-1.img"), LARGE * 4)
    taking.join(0.5)
    late("pages-1.img").cancel()
    taking.join(20)
    with pytest.raises(StoreError) as caught:
        late.wait(cancel)
    assert caught.value.reason is Reason.STORE_FULL
    assert not stores("pages-1.img").closed
    wait_for(lambda: open_files() <= before)


def test_wait_is_called_off(stores):
    late = MemoryBehind(stores)
    feed(late("pages-1.img"), LARGE).join(20)
    cancel = Cancel()
    cancel.set()
    with pytest.raises(ReclaimError) as caught:
        late.wait(cancel)
    assert caught.value.reason is Reason.CANCELLED


@pytest.mark.parametrize("runs", [False, True])
def test_program_that_runs_before_the_store_has_all_ends_the_capture(stores, runs):
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as program:
        os.kill(program.pid, signal.SIGSTOP)
        wait_for(lambda: processes._stat(program.pid)[1] == "T")
        late = MemoryBehind(stores)
        feed(late("pages-1.img"), LARGE).join(20)
        late.mark([processes._process(program.pid, 0)])
        if runs:
            os.kill(program.pid, signal.SIGCONT)
            threading.Event().wait(0.1)
            os.kill(program.pid, signal.SIGSTOP)
        stores("pages-1.img").may.set()
        try:
            if not runs:
                late.wait(Cancel())
                return
            with pytest.raises(RolledBack, match="sh has gone on"):
                late.wait(Cancel())
        finally:
            program.kill()
