"""The store beside its peers: capture and restore, first and second generations.

    .venv/bin/python benchmarks/store.py --mib 1024 --on tmpfs disk --runs 3

Every method saves the same file of memory pages and brings it back. "ours" takes it out
of a pipe into which it is spliced, as CRIU does, encrypts it (AES-256-GCM), commits,
reads back; and restores it into the memory of another process. The peers read a file
and write a file. ``cp`` neither compresses nor encrypts, tar's two only compress;
restic and borg do what we do, but for the way into a process. On disk everything is
synced, and the page cache is dropped before each restore. Peers that are not installed
are left out.

A second generation has some of its pages changed (half of them scattered, half in a
row), and all pages stand at other addresses.

cores = CPU seconds by wall seconds; memory = the most anonymous memory of all processes
of the method together, without the session that is restored.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.workers.pool import Pool
from jupyterhub_gpu_reclaim.store.write.builder import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = 4096
MIB = 1 << 20
WHERE = {"tmpfs": Path("/dev/shm"), "disk": Path(__file__).parents[1] / ".cache"}
SHARES = (0.01, 0.1)

# --- data ----------------------------------------------------------------------------

#: A session: frames, strings, arrays, an index or two. Says when it is there.
SESSION = """
import sys
import numpy as np
size = int(sys.argv[1]) * 2**20
chance, held, has = np.random.default_rng(3), [], 0
while has < size:
    count = 200_000
    held += [chance.normal(size=count), np.arange(count), chance.integers(0, 50, count)]
    held.append([f"user-{n % 977}/item-{n}" for n in range(count // 10)])
    has += 3 * 8 * count + 130 * (count // 10)
    try:
        import pandas as pd
        frame = pd.DataFrame({"a": held[-4], "b": held[-3], "c": held[-2]})
        frame["d"] = frame["c"].map(lambda c: f"group {c}")
        held += [frame, frame.groupby("d").mean()]
        has += int(frame.memory_usage(deep=True).sum())
    except ImportError:
        pass
print("ready", flush=True)
sys.stdin.read()
"""


def floats(mib: int) -> np.ndarray:
    """Random floats: nothing to compress."""
    return np.random.default_rng(1).normal(size=mib * MIB // 8).view(np.uint8)


def pool(mib: int) -> np.ndarray:
    """A caching allocator's pool: most of it never used, some small numbers."""
    chance = np.random.default_rng(2)
    made = np.zeros(mib * MIB, np.uint8)
    blocks = made.reshape(-1, MIB)
    for number, block in enumerate(blocks):
        if number % 10 < 2:
            block[:] = chance.normal(size=MIB // 8).view(np.uint8)
        elif number % 10 == 2:
            block[:] = chance.integers(0, 1000, MIB // 8).view(np.uint8)
    return made


def session(mib: int) -> np.ndarray:
    """The private memory of a live process with NumPy and pandas data."""
    with subprocess.Popen(
        [sys.executable, "-c", SESSION, str(mib)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found, left = [], mib * MIB
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        with Path(f"/proc/{process.pid}/mem").open("rb") as memory:
            for line in maps:
                place, rights, *_, inode = line.split()[:5]
                if not rights.startswith("rw-p") or inode != "0" or "[v" in line:
                    continue
                start, end = (int(part, 16) for part in place.split("-"))
                memory.seek(start)
                found.append(memory.read(min(end - start, left)))
                left -= len(found[-1])
        process.kill()
    data = np.frombuffer(b"".join(found), np.uint8)
    return np.resize(data, mib * MIB)


def changed(data: np.ndarray, share: float) -> np.ndarray:
    """Its next generation."""
    chance = np.random.default_rng(int(share * 1000))
    pages = data.reshape(-1, PAGE).copy()
    count = int(len(pages) * share / 2)
    start = int(chance.integers(0, len(pages) - count))
    rest = np.setdiff1d(np.arange(len(pages)), np.arange(start, start + count))
    for rows in (
        chance.choice(rest, count, replace=False),
        slice(start, start + count),
    ):
        pages[rows] = chance.integers(0, 256, (count, PAGE), np.uint8)
    return np.roll(pages, len(pages) // 3, axis=0).reshape(-1)


KINDS: dict[str, Callable[[int], np.ndarray]] = {
    "floats": floats,
    "pool": pool,
    "session": session,
}

# --- watching ------------------------------------------------------------------------


class Watch:
    """Seconds, CPU seconds and memory of all our descendants while something runs."""

    def __init__(self, *, without: int = 0) -> None:
        self._without = without
        self._cpu: dict[int, float] = {}
        self._begun: dict[int, float] = {}
        self.memory = 0
        self.seconds = 0.0
        self._ended = threading.Event()

    @property
    def cpu(self) -> float:
        return sum(self._cpu[pid] - self._begun.get(pid, 0.0) for pid in self._cpu)

    def __enter__(self) -> Self:
        self._look()
        self._begun = dict(self._cpu)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._ended.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        # Memory costs more to find out than CPU seconds do.
        for turn in itertools.count(1):
            if self._ended.wait(0.03):
                return
            self._look(memory=turn % 8 == 1)

    def _look(self, *, memory: bool = False) -> None:
        anonymous = 0
        for pid in _family(os.getpid()):
            if pid == self._without or _is_about_to_start(pid):
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
                ticks = int(stat[11]) + int(stat[12])
                self._cpu[pid] = ticks / os.sysconf("SC_CLK_TCK")
                if memory and pid != os.getpid():
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    anonymous += sum(
                        int(line.split()[1]) * 1024
                        for line in rollup.splitlines()
                        if line.startswith("Pss_Anon")
                    )
        self.memory = max(self.memory, anonymous)


def _is_about_to_start(pid: int) -> bool:
    """Whether it still shares our memory, between its fork and its program."""
    try:
        ours = Path("/proc/self/cmdline").read_bytes()
        return pid != os.getpid() and Path(f"/proc/{pid}/cmdline").read_bytes() == ours
    except OSError:
        return True


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


# --- methods -------------------------------------------------------------------------


class Ours:
    """Our store, with worker processes."""

    generations = True

    def __init__(self, folder: Path, workers: int | None, kib: int) -> None:
        self.name = f"ours, {kib} KiB" if kib else "ours"
        self._pool = Pool(workers)
        for worker in self._pool.start():
            worker.end()
        keys = KeyRing({"benchmark": bytes(32)})
        self._store = Repository(
            FolderBackend(folder / self.name),
            clock=SystemClock(),
            keys=keys,
            pool=self._pool,
            chunk_bytes=kib * 1024 or CHUNK_BYTES,
        )
        self._number = 0

    def prepare(self, source: Path) -> None:
        """Start what feeds the pipe; CRIU is there already, too.

        In an agent a checkpoint is begun, which warms the pool, seconds before the
        session stands still.
        """
        self._pool.warm()
        self._reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, MIB)
        code = (
            "import os, sys\n"
            "file = os.open(sys.argv[1], os.O_RDONLY)\n"
            "print(flush=True), sys.stdin.readline()\n"
            "while os.splice(file, int(sys.argv[2]), 1 << 20): pass\n"
        )
        self._feeder = subprocess.Popen(
            [sys.executable, "-S", "-c", code, str(source), str(writing)],
            pass_fds=[writing],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.close(writing)
        assert self._feeder.stdout is not None
        self._feeder.stdout.readline()

    def save(self, source: Path) -> int:
        del source
        self._number += 1
        writer = self._store.begin(
            id=f"c{self._number}",
            key=SessionKey("ada"),
            incarnation="i",
            generation=self._number,
        )
        with writer.file("criu/pages-1.img") as file:
            assert self._feeder.stdin is not None
            self._feeder.stdin.write(b"\n")
            self._feeder.stdin.flush()
            with os.fdopen(os.dup(self._reading), "rb", buffering=0) as pipe:
                block = memoryview(bytearray(16 << 20))
                while length := pipe.readinto(block):
                    file.write(block[:length])
        os.close(self._reading)
        self._feeder.communicate()
        return writer.commit().stored_bytes

    def restore(self, target: Target) -> None:
        checkpoint = self._store.open(f"c{self._number}")
        piece = 0, target.length, target.pid, target.address
        checkpoint.copy_to({"criu/pages-1.img": [piece]})

    def check(self, target: Target, plain: np.ndarray) -> bool:
        return target.same(plain)

    def close(self) -> None:
        self._pool.close()


class Peer:
    """A peer that is started by a shell: ``{in}``, ``{out}`` and ``{to}`` are files."""

    def __init__(
        self,
        folder: Path,
        name: str,
        save: str,
        restore: str,
        *,
        init: str = "true",
        generations: bool = False,
    ) -> None:
        self.name = name
        self.generations = generations
        self._folder = folder / name.split(maxsplit=1)[0].replace("|", "")
        self._folder.mkdir()
        self._save, self._restore = save, restore
        self._number = 0
        self._shell(init)

    def prepare(self, source: Path) -> None:
        """It starts within milliseconds."""

    def save(self, source: Path) -> int:
        self._number += 1
        before = self._stored()
        self._shell(self._save, source)
        return self._stored() - before

    def restore(self, target: Target) -> None:
        self._shell(self._restore, target.file)

    def check(self, target: Target, plain: np.ndarray) -> bool:
        return bool((np.fromfile(target.file, np.uint8) == plain).all())

    def close(self) -> None:
        """Nothing runs."""

    def _stored(self) -> int:
        return sum(p.stat().st_size for p in self._folder.rglob("*") if p.is_file())

    def _shell(self, line: str, file: Path = Path("/")) -> None:
        words = {
            "file": str(file),
            "name": file.name,
            "dir": str(file.parent),
            "repo": str(self._folder),
            "n": str(self._number),
        }
        subprocess.run(
            ["bash", "-ec", "set -o pipefail; " + line.format(**words)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "RESTIC_PASSWORD": "benchmark",
                "BORG_PASSPHRASE": "benchmark",
                "BORG_BASE_DIR": str(self._folder.parent / "borg-home"),
                "HOME": str(self._folder.parent),
                "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
            },
        )


def peers(folder: Path) -> Iterator[Peer]:
    """Those that are installed."""
    yield Peer(
        folder,
        "cp",
        "cp {file} {repo}/{n} && sync {repo}/{n}",
        "cp {repo}/{n} {file}",
    )
    for packer, tool in (("zstd -1 -T0", "zstd"), ("gzip -1", "gzip")):
        if shutil.which(tool):
            yield Peer(
                folder,
                f"tar|{packer}",
                f"tar -C {{dir}} -c {{name}} | {packer} > {{repo}}/{{n}}"
                " && sync {repo}/{n}",
                f"{tool} -dc {{repo}}/{{n}} | tar -xO > {{file}}",
            )
    if shutil.which("restic"):
        common = "restic -q --no-cache -r {repo}"
        yield Peer(
            folder,
            "restic",
            f"cat {{file}} | {common} backup --stdin --stdin-filename pages",
            f"{common} dump latest pages > {{file}}",
            init=f"{common} init",
            generations=True,
        )
    if shutil.which("borg"):
        yield Peer(
            folder,
            "borg",
            "cat {file} | borg create -C lz4 {repo}::{n} -",
            "borg extract --stdout {repo}::{n} > {file}",
            init="borg init -e repokey-blake2 {repo}",
            generations=True,
        )


class Target:
    """Where a session comes back: fresh memory of another process, or a file."""

    CODE = (
        "import ctypes, mmap, sys\n"
        "made = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | 0x20)\n"
        "print(ctypes.addressof(ctypes.c_char.from_buffer(made)), flush=True)\n"
        "sys.stdin.read()\n"
    )

    def __init__(self, length: int, file: Path) -> None:
        self.length = length
        self.file = file
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.address = int(self._process.stdout.readline())
        self.pid = self._process.pid

    def same(self, plain: np.ndarray) -> bool:
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            for at in range(0, self.length, 64 * MIB):
                memory.seek(self.address + at)
                part = memory.read(min(64 * MIB, self.length - at))
                if part != plain[at : at + len(part)].tobytes():
                    return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


# --- the table -----------------------------------------------------------------------


@dataclass
class Found:
    """What was measured of one method on one kind of data."""

    save: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    stored: int = 0
    cores: float = 0.0
    memory: int = 0

    def line(self, label: str, length: int, base: Found | None, extra: str) -> str:
        save, back = statistics.median(self.save), statistics.median(self.back)
        rates = [length / save / 1e9, length / back / 1e9]
        ratios = ["", ""]
        if base is not None:
            ratios = [
                f"{statistics.median(base.save) / save:5.2f}",
                f"{statistics.median(base.back) / back:5.2f}",
            ]
        return (
            f"{label:26}{rates[0]:7.2f} {ratios[0]:>6}{rates[1]:9.2f} {ratios[1]:>6}"
            f"{self.stored / length:9.4f}{self.cores:7.1f}{self.memory / MIB:8.0f}"
            f"{extra}"
        )


def drop(folder: Path) -> None:
    """Forget the pages of all files below a folder that are on a disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def once(
    method: Ours | Peer, source: Path, plain: np.ndarray, scratch: Path, found: Found
) -> None:
    """One capture and one restore."""
    method.prepare(source)
    with Watch() as watch:
        found.stored = method.save(source)
    found.save.append(watch.seconds)
    found.cores = watch.cpu / watch.seconds
    found.memory = max(found.memory, watch.memory)
    drop(scratch)
    with Target(len(plain), scratch / "restored") as target:
        with Watch(without=target.pid) as watch:
            method.restore(target)
        found.back.append(watch.seconds)
        found.memory = max(found.memory, watch.memory)
        # Looking takes longer than what is measured: once for each.
        if len(found.back) == 1 and not method.check(target, plain):
            sys.exit(f"{method.name} has not brought back what it saved")
        target.file.unlink(missing_ok=True)


def compare(
    kind: str, where: str, options: argparse.Namespace, sources: dict[float, Path]
) -> None:
    """All methods on one kind of data in one place."""
    plains = {share: np.fromfile(path, np.uint8) for share, path in sources.items()}
    length = len(plains[0.0])
    WHERE[where].mkdir(exist_ok=True)
    found: dict[tuple[str, float], Found] = {}
    for _ in range(options.runs):
        scratch = Path(tempfile.mkdtemp(prefix="store-", dir=WHERE[where]))
        try:
            methods: list[Ours | Peer] = [
                Ours(scratch, options.workers, kib) for kib in options.chunk_kib or [0]
            ]
            methods += itertools.islice(peers(scratch), 1 if options.alone else None)
            for method in methods:
                for share, source in sources.items():
                    if share and not method.generations:
                        continue
                    one = found.setdefault((method.name, share), Found())
                    once(method, source, plains[share], scratch, one)
                method.close()
        finally:
            shutil.rmtree(scratch)
    print(f"\n{kind}, {length // MIB} MiB, {where}")
    print(
        f"{'':26}{'capture':>14}{'restore':>16}{'stored/':>9}{'cores':>7}{'memory':>8}"
    )
    print(
        f"{'':26}{'GB/s':>7} {'x cp':>6}{'GB/s':>9} {'x cp':>6}{'plain':>9}{'':7}"
        f"{'MiB':>8}"
    )
    base = found.get(("cp", 0.0))
    for (name, share), one in found.items():
        label, extra = name, ""
        if share:
            label = f"{name}, {share:.0%} changed"
            extra = f"   {one.stored / (share * length):5.2f} x the changed bytes"
        print(one.line(label, length, base, extra))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--mib", type=int, default=256)
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--workers", type=int, help="default: one for each core")
    words.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    words.add_argument("--tmpfs", type=Path, default=WHERE["tmpfs"], help="its folder")
    words.add_argument("--on", nargs="+", choices=WHERE, default=["tmpfs"])
    words.add_argument(
        "--chunk-kib", type=int, nargs="+", help="sizes of chunks to try"
    )
    words.add_argument("--alone", action="store_true", help="beside cp only")
    words.add_argument("--first", action="store_true", help="no second generations")
    options = words.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, medians of {options.runs} runs")
    WHERE["tmpfs"] = options.tmpfs
    with tempfile.TemporaryDirectory(prefix="store-", dir=options.tmpfs) as folder:
        for kind in options.kinds:
            plain = KINDS[kind](options.mib)
            sources = {}
            for share in (0.0, *(() if options.first else SHARES)):
                sources[share] = Path(folder) / f"{kind}-{share}"
                (changed(plain, share) if share else plain).tofile(sources[share])
            del plain
            for where in options.on:
                compare(kind, where, options, sources)
            for path in sources.values():
                path.unlink()


if __name__ == "__main__":
    main()
