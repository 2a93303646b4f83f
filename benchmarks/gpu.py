"""A session with a card, saved and brought back: ours beside the bare driver and CRIU.

    sudo .venv/bin/python benchmarks/gpu.py --gb 1 4 16 --kinds random zeros

"bare" is what there is without us: the driver's lock and checkpoint call, ``criu
dump`` into files in memory, and the way back. "nowhere" is the least that a capture can
take: the driver's call and CRIU with its images thrown away. "ours" is what the agent
does: its helper for the driver, its engine, its store (encrypted, authenticated,
committed), also in memory; "again" is its next generation, of the session as it came
back, unchanged. "agent" is what a user gets, by orders to a real agent: with its check,
its connections and archives, and the release. All save the same PyTorch process; each
that comes back is asked for a digest of its tensors.

Kinds: random floats, zeros, and a "model": a transformer with AdamW, trained for some
steps on the text of Python's own library; its weights and the optimizer's state are
about as large as asked for.

"free" is until the card is empty, "durable" until the checkpoint is committed (of that
"begin" is what an agent does before, while the session runs), "resumed" until the card
is filled again; in brackets what of that is CRIU with the memory, and what the driver.
"ended" is from the order until the session is gone, "answer" from the order to resume
until its first CUDA calls are done.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))

import session as tree

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.gpu import cuda
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver
from jupyterhub_gpu_reclaim.checkpoint.tree.dump import dump
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT = 600.0
#: Of the model: 50 million numbers, 12 bytes each with what AdamW keeps of them.
LAYER_GIB = 0.5625
PROGRAM = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(1)
folder, gib, kind = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

def trained(layers):
    width, length = 2048, 512
    parts = nn.ModuleList([
        nn.Embedding(256, width), nn.Linear(width, 256),
        *(nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, norm_first=True,
                                     batch_first=True) for _ in range(layers)),
    ]).cuda()
    adam = torch.optim.AdamW(parts.parameters(), lr=1e-4)
    text = b"".join(one.read_bytes() for one in
                    sorted(pathlib.Path(os.__file__).parent.glob("*.py")))
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().cuda()
    mask = nn.Transformer.generate_square_subsequent_mask(length, device="cuda")
    for _ in range(20):
        at = torch.randint(len(text) - length - 1, (4, 1), device="cuda")
        rows = text[at + torch.arange(length + 1, device="cuda")]
        with torch.autocast("cuda", torch.bfloat16):
            x = parts[0](rows[:, :-1])
            for layer in parts[2:]: x = layer(x, src_mask=mask, is_causal=True)
            loss = nn.functional.cross_entropy(
                parts[1](x).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward(); adam.step(); adam.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    state = [v for one in adam.state.values() for v in one.values()]
    return [*parts.parameters(), *state], adam

if kind == "model":
    data, keep = trained(max(1, round(gib / LAYER_GIB)))
else:
    make = {"random": torch.randn, "zeros": torch.zeros}[kind]
    data = [make(1 << 26, device="cuda") for _ in range(int(gib * 4))]

def tell():
    flat = [one.detach().flatten() for one in data]
    text = repr([(float(one.sum()), float(one[::4097].abs().sum())) for one in flat])
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "answer")
tell()
while True:
    signal.sigwait({signal.SIGUSR1})
    tell()
""".replace("LAYER_GIB", str(LAYER_GIB))


class Nowhere:
    """Our engine with CRIU's stream, of which nothing is kept."""

    def __init__(self, criu: criu_module.Criu, folder: Path) -> None:
        self.criu = criu
        self.folder = folder

    def save(self, place: tree.Place) -> None:
        dump(
            self.criu,
            place.session,
            sinks=lambda _: Path(os.devnull).open("wb", buffering=0),  # noqa: SIM115
            folder=self.folder,
            limit=LIMIT,
            stopped=(),
        )


@dataclass
class Times:
    """Of one session, in seconds; what was not done is NaN."""

    free: float
    durable: float
    begin: float = math.nan
    commit: float = math.nan
    resumed: float = math.nan
    memory: float = math.nan
    driver: float = math.nan
    stored: float = math.nan  #: bytes
    ended: float = math.nan
    answer: float = math.nan

    def row(self, gib: float, kind: str, way: str) -> str:
        return (
            f"{gib:>4g} {kind:<7} {way:<8} {self.free:>6.2f}s {self.durable:>7.2f}s"
            f" {self.begin:>7.2f}s {self.commit:>7.2f}s"
            f" {self.resumed:>7.2f}s  {self.memory:>7.2f}s {self.driver:>7.2f}s"
            f" {self.stored / 2**30:>6.2f} GiB"
            f" {self.ended:>7.2f}s {self.answer:>7.2f}s"
        )


Method = tree.Stock | Nowhere | tree.Ours | tree.ByAgent


def save(driver: Driver, method: Method, place: tree.Place) -> Times:
    """Empty the card, as the method does it, then save the rest."""
    if isinstance(method, tree.ByAgent):
        begun = time.monotonic()
        method.save(place)
        saved = method.saved
        return Times(saved.done["gpu"], saved.seconds, ended=time.monotonic() - begun)
    program = place.program
    begun = time.monotonic()
    if isinstance(method, tree.Ours):
        cuda.empty(driver, [program], lock_seconds=LIMIT, seconds=LIMIT)
    else:
        driver.lock(program.pid, seconds=LIMIT)
        driver.checkpoint(program.pid, seconds=LIMIT)
    free = time.monotonic() - begun
    method.save(place)
    times = Times(free, time.monotonic() - begun)
    if isinstance(method, tree.Ours):
        times.begin, _, times.commit = method.save_parts
    return times


def bring_back(
    driver: Driver,
    method: tree.Stock | tree.Ours | tree.ByAgent,
    place: tree.Place,
    times: Times,
) -> None:
    """The rest first, then the card."""
    begun = time.monotonic()
    method.bring_back(place)
    if isinstance(method, tree.ByAgent):
        done = method.resumed.done
        times.resumed, times.memory = done["gpu"], done["memory"]
        times.driver = times.resumed - times.memory
        return
    times.memory = time.monotonic() - begun
    program = place.program
    if isinstance(method, tree.Stock):
        driver.restore(program.pid, seconds=LIMIT)
        driver.unlock(program.pid)
    else:
        # The dump found it stopped, by us, and it comes back so.
        cuda.fill(driver, [program], seconds=LIMIT)
        processes.send(program, signal.SIGCONT)
    times.resumed = time.monotonic() - begun
    times.driver = times.resumed - times.memory


def files(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


WAYS = ("bare", "nowhere", "ours", "agent")


class Bench:
    """One session after the other, each saved in one of the ways."""

    def __init__(self, criu: Path, driver: Driver, pool: Pool, tmpfs: Path) -> None:
        self._folder, self._criu = criu, criu_module.locate(criu)
        self._driver, self._pool = driver, pool
        self._tmpfs = tmpfs

    def measure(
        self, way: str, gib: float, kind: str, *, again: bool
    ) -> Iterator[tuple[str, Times]]:
        """Save a new session and bring it back; with ``again`` once more."""
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(dir=self._tmpfs))
            # The places have a /dev/shm of their own: they talk elsewhere.
            talk = Path(tempfile.mkdtemp(dir="/tmp"))
            for one in (folder, talk):
                stack.callback(shutil.rmtree, one)
            command = [sys.executable, "-c", PROGRAM, str(talk), str(gib), kind]
            place = tree.Place.make("start", *command)
            stack.callback(place.end)
            tree.wait_for((talk / "answer").exists, LIMIT)
            before = (talk / "answer").read_text()
            method = self._method(way, folder)
            if isinstance(method, tree.ByAgent):
                stack.callback(method.close)
                method.see()
            for name in (way, "again") if again and way == "ours" else (way,):
                had = files(folder)
                times = save(self._driver, method, place)
                if isinstance(method, Nowhere):
                    yield name, times
                    return
                times.stored = files(folder) - had
                place.end()
                (talk / "answer").unlink()
                place = tree.Place.make("hold")
                stack.callback(place.end)
                begun = time.monotonic()
                bring_back(self._driver, method, place, times)
                place.ask()
                tree.wait_for((talk / "answer").exists, LIMIT)
                times.answer = time.monotonic() - begun
                if isinstance(method, tree.ByAgent):
                    print(f"{'':>12} {method.steps()}")
                if (talk / "answer").read_text() != before:
                    sys.exit("its tensors came back changed")
                yield name, times

    def medians(
        self, gib: float, kind: str, ways: Sequence[str], *, runs: int, again: bool
    ) -> dict[str, Times]:
        """Measure them in turns, print each row, and return the median of each way."""
        found: dict[str, list[Times]] = {}
        for _, way in itertools.product(range(runs), ways):
            for name, one in self.measure(way, gib, kind, again=again):
                found.setdefault(name, []).append(one)
                print(one.row(gib, kind, name), flush=True)
        return {name: _median(each) for name, each in found.items()}

    def _method(self, way: str, folder: Path) -> Method:
        if way == "bare":
            return tree.Stock(self._criu, folder)
        if way == "nowhere":
            return Nowhere(self._criu, folder)
        if way == "agent":
            return tree.ByAgent(self._folder, folder)
        return tree.Ours(self._criu, folder, tree.open_store(folder, self._pool))

    def table(self, args: argparse.Namespace) -> None:
        """Every size and kind, and how it compares."""
        print(
            f"{'GiB':>4} {'kind':<7} {'way':<8} {'free':>7} {'durable':>8}"
            f" {'(begin':>8} {'commit)':>8} {'resumed':>8}"
            f"  {'(memory':>8} {'driver)':>8} {'stored':>10} {'ended':>8} {'answer':>8}"
        )
        for gib, kind in itertools.product(args.gb, args.kinds):
            medians = self.medians(
                gib, kind, args.ways, runs=args.runs, again=args.again
            )
            if again := medians.get("again"):
                share = again.stored / medians["ours"].stored
                print(f"{'':>12} again: {share:.2%} of the first")
            if not {*WAYS} <= {*medians}:
                continue
            ours, bare = medians["ours"], medians["bare"]
            print(
                f"{'':>12} ours: free {ours.free / bare.free:.2f} x bare,"
                f" durable {ours.durable / bare.durable:.2f} x bare and"
                f" {ours.durable / medians['nowhere'].durable:.2f} x nowhere,"
                f" resumed {ours.resumed / bare.resumed:.2f} x bare;"
                f" agent: durable {medians['agent'].durable / ours.durable:.2f} x ours,"
                f" answer {medians['agent'].answer / ours.answer:.2f} x ours"
                f" ({args.runs} runs, medians)"
            )


def _median(runs: list[Times]) -> Times:
    columns = zip(*(dataclasses.astuple(one) for one in runs), strict=True)
    return Times(*(statistics.median(column) for column in columns))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--gb", type=float, nargs="*", default=[1])
    words.add_argument("--kinds", nargs="+", default=["random", "zeros"])
    words.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    words.add_argument("--runs", type=int, default=1)
    words.add_argument("--again", action="store_true", help="a second generation, too")
    words.add_argument("--tmpfs", type=Path, default=tree.WHERE["tmpfs"])
    words.add_argument("--criu", type=Path, default=tree.ROOT / ".cache" / "criu")
    args = words.parse_args()
    driver = Driver()
    if not driver.present():
        sys.exit("there is no GPU here, or its driver is older than 570")
    pool = Pool()
    try:
        Bench(args.criu, driver, pool, args.tmpfs).table(args)
    finally:
        pool.close()
        driver.close()


if __name__ == "__main__":
    main()
