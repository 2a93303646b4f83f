"""What limits a capture: each part of the store's work alone, then together.

    .venv/bin/python benchmarks/store_profile.py --workers 1 4 8 12 16 --mib 1024

Every part is done by N processes at once, each on its own data and its own files, as a
capture's workers do it, without CRIU and without an agent. A part that gets no faster
with more workers is what limits them; "sys" tells what of it is the kernel's. Parts:

* memory: copies within the process, one MiB at a time: what the memory gives at most;
* pipe: slots out of one shared pipe, token and splice, into each worker's memory;
* zeros, ids, probe, LZ4, seal: the work on a slot, each alone;
* write: blocks into new files of pack size; "over": the same files once more, so
  without fresh pages; "huge": on a tmpfs with huge pages (only for root); "ahead": room
  made before (fallocate); "one folder": where all of them write, as packs stand, while
  the others have a folder each;
* read: sealed blocks out of files that were just written, and opened;
* writer: all of it but the pipe;
* capture: all of it, with the pipe, the repository and its commit.

GB/s of plain bytes, all workers together; user and sys: CPU seconds for a GB, with the
most workers; cores: how many were busy then.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import mmap
import multiprocessing
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import lz4.block
import numpy as np
from store import floats, pool, session

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format import compression, crypto
from jupyterhub_gpu_reclaim.store.format.crypto import Origin
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.packing import pack_writer
from jupyterhub_gpu_reclaim.store.packing.buffers import Splicer
from jupyterhub_gpu_reclaim.store.packing.pack_writer import (
    BLOCK_BYTES,
    BUFFER_BYTES,
    PackWriter,
    Recipe,
)
from jupyterhub_gpu_reclaim.store.packing.packs import PACK_BYTES
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.workers.channel import END, TOKEN_BYTES
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

MIB = 1 << 20
KEY = bytes(32)
DATA = {"floats": floats, "session": session, "pool": pool}
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Job:
    """What a worker is given."""

    data: memoryview  #: plain bytes, used again and again
    folder: Path  #: of this worker
    shared: Path  #: of all
    number: int
    slots: int  #: that it does

    def each(self) -> Iterator[memoryview]:
        """One slot after the other; each worker begins elsewhere."""
        count = len(self.data) // BUFFER_BYTES
        for turn in range(self.slots):
            at = (turn + self.number * 7) % count * BUFFER_BYTES
            yield self.data[at : at + BUFFER_BYTES]


#: Made in the worker before the clock starts; what it returns is the part itself.
Part = Callable[[Job], Callable[[], None]]


def simple(work: Callable[[memoryview], object]) -> Part:
    """A part that does the same to every slot."""

    def part(job: Job) -> Callable[[], None]:
        def run() -> None:
            for slot in job.each():
                work(slot)

        return run

    return part


# --- work on a slot ------------------------------------------------------------------


def memory(job: Job) -> Callable[[], None]:
    into = np.empty(BUFFER_BYTES, np.uint8)
    return simple(lambda slot: np.copyto(into, np.frombuffer(slot, np.uint8)))(job)


def zeros(slot: memoryview) -> None:
    pack_writer.not_zero(np.frombuffer(slot, np.uint8).reshape(-1, 4096))


def ids(job: Job) -> Callable[[], None]:
    made = crypto.ChunkIds(KEY)
    starts = range(0, BUFFER_BYTES, 4096)
    return simple(lambda slot: made.of([slot[at : at + 4096] for at in starts]))(job)


def blocks(slot: memoryview) -> Iterator[memoryview]:
    for at in range(0, BUFFER_BYTES, BLOCK_BYTES):
        yield slot[at : at + BLOCK_BYTES]


def probe(slot: memoryview) -> None:
    for block in blocks(slot):
        compression.probe(block)


def compress(slot: memoryview) -> None:
    for block in blocks(slot):
        lz4.block.compress(block, store_size=False)


def seal(job: Job) -> Callable[[], None]:
    sealer = crypto.Sealer(KEY)
    out = memoryview(bytearray(BLOCK_BYTES + crypto.TAG_BYTES))

    def work(slot: memoryview) -> None:
        for block in blocks(slot):
            sealer.seal_into(0, block, b"", out)

    return simple(work)(job)


# --- files ---------------------------------------------------------------------------


def files(
    job: Job, *, over: bool = False, ahead: bool = False, together: bool = False
) -> Callable[[], None]:
    """Blocks into files; nothing is left of them afterwards but remains."""
    folder = job.shared if together else job.folder
    paths = [
        folder / f"{job.number}-{n}" for n in range(-(-job.slots * MIB // PACK_BYTES))
    ]

    def run() -> None:
        left = job.slots
        for path in paths:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if ahead:
                os.posix_fallocate(file, 0, min(PACK_BYTES, left * MIB))
            for slot in job.each():
                for block in blocks(slot):
                    os.write(file, block)
                left -= 1
                if not left or not left % (PACK_BYTES // BUFFER_BYTES):
                    break
            os.fsync(file)
            os.close(file)

    if over:
        run()
    return run


def huge(job: Job, *, part: Part) -> Callable[[], None]:
    """The same on a tmpfs that takes huge pages (the folder of this worker is one)."""
    place = str(job.folder).encode()
    if libc.mount(b"tmpfs", place, b"tmpfs", 0, b"huge=always,mode=700"):
        raise OSError(ctypes.get_errno(), "no tmpfs with huge pages here")
    return part(replace(job, shared=job.folder))


def read(job: Job) -> Callable[[], None]:
    """Sealed blocks back, and opened."""
    sealer, path = crypto.Sealer(KEY), job.folder / "sealed"
    stored = BLOCK_BYTES + crypto.TAG_BYTES
    sealed = [sealer.seal(0, block, b"") for s in job.each() for block in blocks(s)]
    path.write_bytes(b"".join(sealed))
    count, back = len(sealed), memoryview(bytearray(stored))
    sealed.clear()
    out = memoryview(bytearray(BLOCK_BYTES))

    def run() -> None:
        file = os.open(path, os.O_RDONLY)
        for number in range(count):
            os.preadv(file, [back], number * stored)
            sealer.open_into(0, back, b"", out)
        os.close(file)

    return run


def one_writer(job: Job) -> Callable[[], None]:
    origin = Origin(id="x", key=SessionKey("u"), generation=1, data_key=KEY)
    recipe = Recipe(
        origin=origin,
        id_key=KEY,
        chunk_bytes=4096,
        pack_bytes=PACK_BYTES,
        compression=compression.Compression.LZ4,
    )
    counters = np.zeros(pack_writer.COUNTERS, np.int64)
    made = PackWriter(FolderBackend(job.shared), recipe, job.number, None, counters)

    def run() -> None:
        for turn, slot in enumerate(job.each()):
            made.put(0, turn * (BUFFER_BYTES // 4096), slot, BUFFER_BYTES)
        made.report()
        made.packs.settled(600.0)

    return run


# --- running -------------------------------------------------------------------------


@dataclass
class Found:
    """What N workers have done."""

    seconds: float
    user: float
    sys: float


def _work(part: Part, job: Job, ready: Barrier, done: Barrier, answer: int) -> None:
    for option in (-1, -3):
        libc.mallopt(option, 1 << 26)  # as a worker does
    try:
        run = part(job)
        ready.wait()
        before = resource.getrusage(resource.RUSAGE_SELF)
        run()
        after = resource.getrusage(resource.RUSAGE_SELF)
        done.wait()
        spent = np.array(
            [after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime]
        )
        os.write(answer, spent.tobytes())
    except OSError as error:
        print(f"  ({error.strerror})", end="", flush=True)
        ready.abort()
    except threading.BrokenBarrierError:
        pass


def alone(
    part: Part, data: memoryview, workers: int, mib: int, where: Path
) -> Found | None:
    """One part, by so many processes; None where it cannot be done here."""
    context = multiprocessing.get_context("fork")
    ready, done = context.Barrier(workers + 1), context.Barrier(workers + 1)
    top = Path(tempfile.mkdtemp(prefix="profile-", dir=where))
    reading, writing = os.pipe()
    processes = []
    try:
        for number in range(workers):
            folder = top / f"of-{number}"
            folder.mkdir()
            job = Job(data, folder, top, number, mib)
            processes.append(
                context.Process(target=_work, args=(part, job, ready, done, writing))
            )
            processes[-1].start()
        try:
            ready.wait()
        except threading.BrokenBarrierError:
            return None
        begun = time.monotonic()
        done.wait()
        seconds = time.monotonic() - begun
        for process in processes:
            process.join()
        spent = [np.frombuffer(os.read(reading, 16)) for _ in processes]
        return Found(seconds, *np.sum(spent, axis=0))
    finally:
        for process in processes:
            process.join()
        os.close(reading)
        os.close(writing)
        for folder in top.glob("of-*"):
            libc.umount2(str(folder).encode(), 2)
        shutil.rmtree(top)


def feed(data: memoryview, slots: int, writing: int) -> None:
    """Move pages into a pipe as CRIU does: none is copied."""
    libc.vmsplice.restype = ctypes.c_ssize_t
    base = np.frombuffer(data, np.uint8).ctypes.data
    count = len(data) // BUFFER_BYTES
    for turn in range(slots):
        at, left = base + turn % count * BUFFER_BYTES, BUFFER_BYTES
        while left:
            vector = (ctypes.c_size_t * 2)(at, left)
            moved = libc.vmsplice(writing, vector, 1, 0)
            if moved < 0:
                raise OSError(ctypes.get_errno(), "vmsplice")
            at, left = at + moved, left - moved


def pipe(data: memoryview, workers: int, mib: int) -> Found:
    """BufferCutter out of one pipe, by workers who pass a token on."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, MIB)
    token_out, token_in = os.pipe()
    context = multiprocessing.get_context("fork")

    def take() -> None:
        os.close(writing)
        slot = memoryview(bytearray(BUFFER_BYTES))
        with Splicer(reading) as splicer:
            while True:
                offset = int.from_bytes(os.read(token_out, TOKEN_BYTES), "little")
                length = 0 if offset == END else splicer.take(slot)
                ended = length < BUFFER_BYTES
                after = END if ended else offset + length
                os.write(token_in, after.to_bytes(TOKEN_BYTES, "little"))
                if ended:
                    return
                splicer.read(slot)

    takers = [context.Process(target=take) for _ in range(workers)]
    for taker in takers:
        taker.start()
    feeder = context.Process(target=feed, args=(data, workers * mib, writing))
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    feeder.start()
    os.close(writing)
    os.write(token_in, bytes(TOKEN_BYTES))
    for process in (feeder, *takers):
        process.join()
    seconds = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for end in (reading, token_out, token_in):
        os.close(end)
    return Found(
        seconds, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    )


def capture(data: memoryview, workers: int, mib: int, where: Path) -> Found:
    """All of it: the pipe, the workers, the commit."""
    folder = Path(tempfile.mkdtemp(prefix="profile-", dir=where))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = Pool(workers)
    try:
        for worker in made.start():
            worker.end()
        store = Repository(
            FolderBackend(folder),
            clock=SystemClock(),
            keys=KeyRing({"benchmark": KEY}),
            pool=made,
        )
        writer = store.begin(id="c", key=SessionKey("u"), incarnation="i", generation=1)
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, MIB)
        context = multiprocessing.get_context("fork")
        feeder = context.Process(target=feed, args=(data, workers * mib, writing))
        feeder.start()
        os.close(writing)
        begun = time.monotonic()
        with writer.file("pages") as file:
            file.take_pipe(reading)
        os.close(reading)
        feeder.join()
        writer.commit()
        seconds = time.monotonic() - begun
    finally:
        made.close()
        shutil.rmtree(folder)
    # With the workers' start, which is paid once: their own times are not told apart.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Found(
        seconds, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    )


PARTS: dict[str, Part] = {
    "memory": memory,
    "zeros": simple(zeros),
    "ids": ids,
    "probe": simple(probe),
    "LZ4": simple(compress),
    "seal": seal,
    "write": files,
    "write, one folder": partial(files, together=True),
    "write, over": partial(files, over=True),
    "write, ahead": partial(files, ahead=True),
    "write, huge": partial(huge, part=files),
    "read": read,
    "writer": one_writer,
    "writer, huge": partial(huge, part=one_writer),
}


def row(name: str, measure: Callable[[int], Found | None]) -> None:
    """One part, with more and more workers; it ends where it cannot be done."""
    print(f"{name:<18}", end="", flush=True)
    gb = found = None
    for workers in ARGS.workers:
        found = measure(workers)
        if found is None:
            print()
            return
        gb = workers * ARGS.mib * MIB / 1e9
        print(f"{gb / found.seconds:>8.2f}", end="", flush=True)
    assert found is not None
    assert gb is not None
    cores = (found.user + found.sys) / found.seconds
    print(f"  |{found.user / gb:>7.3f}{found.sys / gb:>7.3f}{cores:>7.1f}", flush=True)


def shared(name: str, mib: int) -> memoryview:
    """The data, in memory that is not copied by a fork."""
    made = DATA[name](mib)
    memory = mmap.mmap(-1, len(made), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    memory[:] = made.tobytes()
    return memoryview(memory)


def table(name: str, wanted: list[str]) -> None:
    """All parts on one kind of data."""
    data, mib, on = shared(name, 256), ARGS.mib, ARGS.on
    head = "".join(f"{count:>8}" for count in ARGS.workers)
    print(f"\n{name + ', workers:':<18}{head}  |   user    sys  cores")
    for part in wanted:
        if part in PARTS:
            row(part, lambda n, p=PARTS[part]: alone(p, data, n, mib, on))
        elif part == "pipe":
            row(part, lambda n: pipe(data, n, mib))
        else:
            row(part, lambda n: capture(data, n, mib, on))


def main() -> None:
    print(
        f"{len(os.sched_getaffinity(0))} cores, {ARGS.mib} MiB a worker, in {ARGS.on}"
    )
    for name in ARGS.data:
        table(name, ARGS.parts or [*PARTS, "pipe", "capture"])


def arguments() -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--workers", type=int, nargs="+", default=[1, cores])
    words.add_argument("--mib", type=int, default=256, help="each worker's share")
    words.add_argument("--data", nargs="+", choices=DATA, default=["floats"])
    words.add_argument("--on", type=Path, default=Path("/dev/shm"))
    words.add_argument("--parts", nargs="+", metavar="PART", help="only these")
    return words.parse_args()


if __name__ == "__main__":
    ARGS = arguments()
    main()
