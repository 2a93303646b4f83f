"""Worker processes: memory that many read, memory that many fill, and their deaths."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.workers import channel, handle
from jupyterhub_gpu_reclaim.store.workers import pool as pool_module
from jupyterhub_gpu_reclaim.store.workers.pool import Pool
from tests.store.doubles import KEYS

PAGE = 4096
PLAIN = os.urandom(5_000_000) + bytes(3_000_000) + b"kernel " * 400_000


@pytest.fixture(scope="module")
def pool():
    made = Pool(3)
    yield made
    made.close()


@pytest.fixture(params=["workers", "threads"])
def store(request, root, clock, pool):
    used = pool if request.param == "workers" else None
    return Repository(
        FolderBackend(root), clock=clock, keys=KEYS, pool=used, pack_bytes=1 << 20
    )


@pytest.fixture
def working(root, clock, pool):
    return Repository(FolderBackend(root), clock=clock, keys=KEYS, pool=pool)


def begin(store, number=1):
    return store.begin(
        id=f"c{number}", key=SessionKey("u"), incarnation="i", generation=number
    )


def take(writer, name, plain, sizes=None):
    with writer.file(name) as file:
        view, turn = memoryview(plain), 0
        while view:
            size = sizes[turn % len(sizes)] if sizes else len(view)
            file.write(view[:size])
            view, turn = view[size:], turn + 1


@pytest.mark.parametrize(
    "length", [0, 1, 4096, 1 << 20, (1 << 20) + 1, 3 << 20, len(PLAIN)]
)
def test_file_of_any_length_reads_back(store, length):
    writer = begin(store)
    take(writer, "pages-1.img", PLAIN[:length])
    info = writer.commit()
    assert info.logical_bytes == writer.logical_bytes == length
    assert store.open("c1").read("pages-1.img") == PLAIN[:length]


def memory_of(pid: int, plain: np.ndarray, length: int) -> ProcessMemory:
    """The beginning of that, in pieces."""
    piece = 300_000
    starts = np.arange(0, length, piece)
    lengths = np.minimum(piece, length - starts)
    return ProcessMemory(pid, np.stack([plain.ctypes.data + starts, lengths], 1))


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 20) + 1, len(PLAIN)])
def test_memory_of_any_length_reads_back(store, length):
    plain = np.frombuffer(PLAIN, np.uint8)
    writer = begin(store)
    with writer.file("pages-1.img") as file:
        file.take_memory(memory_of(os.getpid(), plain, length))
    writer.add("other", b"small" * 9000)
    info = writer.commit()
    assert info.logical_bytes == writer.logical_bytes == length + 45_000
    assert store.open("c1").read("pages-1.img") == PLAIN[:length]
    assert store.open("c1").verify() == []


def test_memory_of_a_process_that_has_ended_bars_the_commit(store, root):
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    plain = np.frombuffer(PLAIN, np.uint8)
    writer = begin(store)
    with pytest.raises((OSError, StoreError)), writer.file("pages-1.img") as file:
        file.take_memory(memory_of(ended.pid, plain, len(PLAIN)))
    with pytest.raises(StoreError):
        writer.commit()
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_file_is_composed_of_parts_and_what_none_needs_is_left(store):
    """Also of chunks that the last generation has, and once that is gone."""
    plain = np.frombuffer(PLAIN, np.uint8)
    whole = len(PLAIN) // PAGE
    expected = b""
    for generation in (1, 2):
        writer = begin(store, generation)
        parts = []
        for skipped in (0, 100):
            at = skipped * PAGE
            with writer.parts() as part:
                length = (whole - skipped) * PAGE
                part.take_memory(memory_of(os.getpid(), plain[at:], length))
            parts.append((part, None))
        writer.add("other", b"small" * 9000)
        pieces = [(1, 0, 200), (0, 5, 1), (0, 90, 60), (1, whole - 101, 1)]
        with writer.file("pages-1.img") as file:
            file.compose(parts, pieces)
        with writer.file("more") as file, pytest.raises(StoreError, match="too short"):
            file.compose(parts, [(0, whole - 1, 2)])
        info = writer.commit()
        pages = [PLAIN[at : at + PAGE] for at in range(0, whole * PAGE, PAGE)]
        expected = b"".join([*pages[100:300], pages[5], *pages[90:150], pages[-1]])
        assert info.logical_bytes == len(expected) + 45_000
        saved = store.open(f"c{generation}")
        assert sorted(saved.names()) == ["more", "other", "pages-1.img"]
        assert saved.read("pages-1.img") == expected
        assert saved.verify() == []
    store.delete("c1")
    assert store.open("c2").read("pages-1.img") == expected


def test_parts_are_offered_only_where_a_chunk_is_a_page(root, clock):
    store = Repository(FolderBackend(root), clock=clock, keys=KEYS, chunk_bytes=8192)
    assert begin(store).parts is None


def test_memory_that_is_called_off_is_not_read(store):
    plain = np.frombuffer(PLAIN, np.uint8)
    file = begin(store).file("pages-1.img")
    file.cancel()
    with pytest.raises(StoreError) as caught:
        file.take_memory(memory_of(os.getpid(), plain, len(PLAIN)))
    assert caught.value.reason is Reason.CANCELLED


def test_file_written_in_odd_parts_and_files_beside_read_back(store):
    writer = begin(store)
    take(writer, "pages-1.img", PLAIN, sizes=(1, 5000, 6_000_001, 333, 100_000))
    writer.add("other", b"small" * 9000)
    take(writer, "pages-2.img", PLAIN[::-1][:3_000_000])
    assert writer.stored_bytes > 5_000_000
    writer.commit()
    checkpoint = store.open("c1")
    assert checkpoint.read("pages-1.img") == PLAIN
    assert checkpoint.read("pages-2.img") == PLAIN[::-1][:3_000_000]
    assert checkpoint.read("other") == b"small" * 9000
    assert store.open("c1").verify() == []


def test_two_files_at_once_read_back(store):
    writer = begin(store)
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda at: take(writer, "ab"[at], PLAIN[at:]), range(2)))
    writer.commit()
    for at, name in enumerate("ab"):
        assert store.open("c1").read(name) == PLAIN[at:]


def test_second_generation_through_workers_is_referenced(store):
    writer = begin(store)
    take(writer, "pages-1.img", PLAIN)
    first = writer.commit()
    shifted = os.urandom(4096) + PLAIN
    writer = begin(store, 2)
    take(writer, "pages-7.img", shifted)
    second = writer.commit()
    assert second.stored_bytes < first.stored_bytes / 20
    assert second.deduplicated_bytes > 7_000_000
    store.delete("c1")
    assert store.open("c2").read("pages-7.img") == shifted


# --- memory of processes -------------------------------------------------------------


@pytest.fixture
def saved(store):
    writer = begin(store)
    take(writer, "pages-1.img", PLAIN)
    writer.commit()
    return store.open("c1")


class Target:
    """A stopped process with fresh memory."""

    CODE = (
        "import ctypes, mmap, os, signal, sys\n"
        "made = mmap.mmap(-1, int(sys.argv[1]))\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(made))\n"
        "print(at, flush=True)\n"
        "if len(sys.argv) > 2:\n"
        "    ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), int(sys.argv[1]), 1)\n"
        "print('', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )

    def __init__(self, length, *options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, str(length), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = int(self.process.stdout.readline())
        self.process.stdout.readline()
        self.pid = self.process.pid

    def read(self, length):
        with Path(f"/proc/{self.pid}/mem").open("rb") as memory:
            memory.seek(self.address)
            return memory.read(length)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_copy_to_another_process_puts_every_byte_in_its_place(saved):
    told = []
    with Target(len(PLAIN) + 8192) as target:
        half = 4096 * 1000
        pieces = [
            (half, len(PLAIN) - half, target.pid, target.address + half),
            (0, half - 4096, target.pid, target.address),
            (7, 100, target.pid, target.address + half - 4096 + 33),
        ]
        done = saved.copy_to({"pages-1.img": pieces}, progress=told.append)
        found = target.read(len(PLAIN))
    assert done == sum(told) == len(PLAIN) - 4096 + 100
    assert found[: half - 4096] == PLAIN[: half - 4096]
    assert found[half:] == PLAIN[half:]
    gap = found[half - 4096 : half]
    assert gap == bytes(33) + PLAIN[7:107] + bytes(4096 - 133)
    left = b"".join(saved.stream("pages-1.img", skip=[(o, n) for o, n, _, _ in pieces]))
    assert left == PLAIN[half - 4096 : half]


def test_files_copied_together_need_the_workers_once(working):
    writer = begin(working, 1)
    other = PLAIN[::-1]
    take(writer, "pages-1.img", PLAIN)
    take(writer, "pages-2.img", other)
    writer.commit()
    saved = working.open("c1")
    started = []
    start = saved._pool.start
    saved._pool.start = lambda *count: started.append(count) or start(*count)
    length = len(PLAIN)
    with Target(length) as one, Target(length) as two:
        done = saved.copy_to(
            {
                "pages-1.img": [(0, length, one.pid, one.address)],
                "pages-2.img": [(0, length, two.pid, two.address)],
            }
        )
        assert (one.read(length), two.read(length)) == (PLAIN, other)
    assert done == 2 * length
    assert len(started) == 1


def shared_memory() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own
            found += "memfd:" in str(descriptor.readlink())
    return found


def test_shared_memory_goes_with_the_workers_and_not_with_who_asked_for_them(working):
    before, kept = shared_memory(), []
    for number in range(1, 4):
        writer = begin(working, number)
        take(writer, "pages-1.img", PLAIN)
        writer.commit()
        saved = working.open(f"c{number}")
        with Target(len(PLAIN)) as target:
            saved.copy_to(
                {"pages-1.img": [(0, len(PLAIN), target.pid, target.address)]}
            )
        kept += [writer, saved]
    assert shared_memory() == before
    assert kept[0].stored_bytes > 5_000_000


def test_copy_of_nothing_is_nothing(saved):
    assert saved.copy_to({"pages-1.img": []}) == 0


def test_copy_to_a_process_that_is_gone_is_an_error(saved):
    with Target(8192) as target:
        pid, address = target.pid, target.address
    with pytest.raises(StoreError) as caught:
        saved.copy_to({"pages-1.img": [(0, 8192, pid, address)]})
    assert caught.value.reason is Reason.RESTORE_FAILED


def test_copy_beyond_the_file_or_the_memory_is_an_error(saved):
    with Target(1 << 20) as target, pytest.raises(StoreError):
        saved.copy_to(
            {"pages-1.img": [(0, len(PLAIN) + 1, target.pid, target.address)]}
        )
    with Target(1 << 20) as target, pytest.raises(StoreError):
        saved.copy_to({"pages-1.img": [(0, 5 << 20, target.pid, 4096)]})


def test_copy_to_read_only_memory_is_an_error(saved):
    with Target(8192, "read-only") as target, pytest.raises(StoreError) as caught:
        saved.copy_to({"pages-1.img": [(0, 8192, target.pid, target.address)]})
    assert caught.value.reason is Reason.RESTORE_FAILED


def test_copy_of_a_damaged_block_is_an_error(saved, root):
    pack = max((root / "packs" / "c1").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with Target(len(PLAIN)) as target, pytest.raises(StoreError) as caught:
        saved.copy_to({"pages-1.img": [(0, len(PLAIN), target.pid, target.address)]})
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


def test_copy_that_is_cancelled_ends(saved):
    cancel = threading.Event()
    cancel.set()
    buffer = np.zeros(len(PLAIN), np.uint8)
    pieces = [(0, len(PLAIN), os.getpid(), buffer.ctypes.data)] * 300
    with pytest.raises(StoreError) as caught:
        saved.copy_to({"pages-1.img": pieces}, cancelled=cancel.is_set)
    assert caught.value.reason is Reason.CANCELLED


# --- what goes wrong -----------------------------------------------------------------


def workers_of(store):
    server = store._pool._server.pid
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [int(pid) for pid in children]


@pytest.mark.parametrize("how", ["abort", "cancel", "kill"])
def test_write_that_hangs_in_a_worker_ends_with_that_or_by_a_word(working, root, how):
    writer = begin(working)
    take(writer, "small", PLAIN[:100])
    take(writer, "large", PLAIN)
    hanging = workers_of(working)[1]
    os.kill(hanging, signal.SIGSTOP)
    file, seen = writer.file("a"), []

    def run():
        with pytest.raises(StoreError) as caught:
            file.write(PLAIN)
        seen.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    while writer.logical_bytes < 1.5 * len(PLAIN):
        time.sleep(0.01)
    if how == "kill":
        os.kill(hanging, signal.SIGKILL)
    elif how == "cancel":
        file.cancel()
        file.cancel()
    else:
        writer.abort()
    thread.join(60)
    if how == "kill":
        assert "ended unexpectedly" in seen[0].message
    else:
        assert seen[0].reason is Reason.CANCELLED
    with pytest.raises(StoreError):
        writer.commit()
    writer.abort()
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_workers_of_a_dead_server_die_and_a_new_one_comes(working):
    writer = begin(working)
    take(writer, "a", PLAIN)
    workers = workers_of(working)
    assert len(workers) == 3
    working._pool._server.kill()
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(StoreError):
        writer.commit()
    writer = begin(working, 2)
    take(writer, "a", PLAIN)
    writer.commit()
    assert working.open("c2").read("a") == PLAIN


def test_full_disk_in_a_worker_is_store_full(clock, pool, tmp_path, small_disk):
    store = Repository(FolderBackend(small_disk), clock=clock, keys=KEYS, pool=pool)
    writer = begin(store)
    with pytest.raises(StoreError) as caught:
        writer.file("a").write(os.urandom(9_000_000))
    assert caught.value.reason is Reason.STORE_FULL
    writer.abort()
    assert [p for p in small_disk.rglob("*") if p.is_file()] == []


def test_workers_end_with_their_agent(tmp_path):
    code = (
        "import sys, time\n"
        "from jupyterhub_gpu_reclaim.store.workers.pool import Pool\n"
        "pool = Pool(2); workers = pool.start()\n"
        "print(pool._server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    server = int(agent.stdout.readline())
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    assert len(children) == 2
    agent.kill()
    agent.wait()
    agent.stdout.close()
    until = time.monotonic() + 60
    while any(_alive(pid) for pid in (server, *children)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_workers_of_a_capture_are_there_before_they_are_needed(working, pool):
    writer = begin(working)
    until = time.monotonic() + 60
    while pool._server is None:  # begun by the first capture, beside it
        assert time.monotonic() < until
        time.sleep(0.01)
    server = pool._server.pid
    children = Path(f"/proc/{server}/task/{server}/children")
    while len(children.read_text().split()) < pool.size:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert writer.abort()
    assert not children.read_text()


def test_checkpoint_without_large_files_is_committed_beside_workers_that_begin(working):
    writer = begin(working)
    writer.add("a", b"small")
    writer.commit()
    assert working.open("c1").read("a") == b"small"


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_descriptors_of_those_who_ended_well_are_closed_when_one_does_not():
    before = len(list(Path("/proc/self/fd").iterdir()))
    (good, its_end), (bad, other_end) = channel.pair(), channel.pair()
    memory = channel.share("report", None)
    channel.send(its_end, channel.Done(), [memory])
    other_end.close()
    with pytest.raises(StoreError, match="ended unexpectedly"):
        handle.hear_all([handle.WorkerHandle(good), handle.WorkerHandle(bad)], 5.0)
    channel.close_all([memory])
    for end in (good, its_end, bad):
        end.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_hung_fork_server_is_an_error_in_words_and_the_next_one_is_new(monkeypatch):
    monkeypatch.setattr(pool_module, "BEGIN_SECONDS", 0.3)
    pool = Pool(2)
    try:
        pool.warm()
        hung = pool._server.pid
        os.kill(hung, signal.SIGSTOP)
        with pytest.raises(StoreError, match="no worker can be started"):
            pool.start()
        assert not _alive(hung)
        monkeypatch.undo()
        workers = pool.start()
        assert len(workers) == 2
        for worker in workers:
            worker.end()
    finally:
        pool.close()


def test_late_timeout_of_a_hung_fork_server_leaves_its_successor_alone(monkeypatch):
    pool, healthy = Pool(2), []
    greet = handle.WorkerHandle.greet

    def late(worker, seconds):
        monkeypatch.setattr(handle.WorkerHandle, "greet", greet)
        pool.close()  # as another capture does, which met the hung one as well
        healthy.extend(pool.start())
        raise TimeoutError

    try:
        monkeypatch.setattr(handle.WorkerHandle, "greet", late)
        with pytest.raises(StoreError, match="no worker can be started"):
            pool.start()
        assert pool._server.lives
        for worker in healthy:
            worker.end()
    finally:
        pool.close()
