"""A session with a card, saved and brought back: ours beside the bare driver and CRIU.

    sudo .venv/bin/python benchmarks/gpu.py --gb 1 4 16 --kinds random zeros --steady

"bare" is what there is without us: the driver's lock and checkpoint call, ``criu
dump`` into files in memory, and the way back. "ours" is what the agent does: its helper
for the driver, its engine, its store (encrypted, authenticated, committed), also in
memory. Both save the same PyTorch process; each that comes back is asked for a digest
of its tensors.

"free" is until the card is empty, "durable" until the checkpoint is committed,
"resumed" until the card is filled again; in brackets what of that is CRIU with the
memory, and what the driver. ``--steady`` runs a bf16 matrix product with and without
an agent's sampling, in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import session as tree

from jupyterhub_gpu_reclaim.engine import criu as criu_module
from jupyterhub_gpu_reclaim.engine import cuda, gpu_processes, processes
from jupyterhub_gpu_reclaim.engine.cuda_driver import Driver
from jupyterhub_gpu_reclaim.metrics.nvml import Nvml
from jupyterhub_gpu_reclaim.store.pool import Pool

LIMIT = 600.0
SHM = Path("/dev/shm")
PROGRAM = """
import pathlib, sys, time
import torch
torch.set_num_threads(1)
folder, gib, kind = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
make = {"random": torch.randn, "zeros": torch.zeros}[kind]
data = [make(1 << 26, device="cuda") for _ in range(int(gib * 4))]
def tell():
    text = repr([(float(one.sum()), float(one[::4097].abs().sum())) for one in data])
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "answer")
tell()
while True:
    time.sleep(0.002)
    if (folder / "question").exists():
        (folder / "question").unlink()
        tell()
"""
STEADY = """
import sys, time
import torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
for line in sys.stdin:
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < float(line):
        for _ in range(20): a @ b
        torch.cuda.synchronize(); count += 20
    print(count / (time.monotonic() - begun), flush=True)
"""


def users(place: tree.Place, driver: Driver) -> list[processes.Process]:
    found = gpu_processes.survey(driver, processes.snapshot(place.pid, place.start))
    return [user.process for user in found.users]


def bare(driver: Driver, method: tree.Stock, place: tree.Place) -> list[float]:
    (one,) = users(place, driver)
    begun = time.monotonic()
    driver.lock(one.pid, seconds=LIMIT)
    driver.checkpoint(one.pid, seconds=LIMIT)
    free = time.monotonic() - begun
    method.save(place)
    return [free, time.monotonic() - begun]


def bare_back(driver: Driver, method: tree.Stock, place: tree.Place) -> list[float]:
    begun = time.monotonic()
    method.bring_back(place)
    criu = time.monotonic() - begun
    (one,) = users(place, driver)
    driver.restore(one.pid, seconds=LIMIT)
    driver.unlock(one.pid)
    whole = time.monotonic() - begun
    return [whole, criu, whole - criu]


def ours(driver: Driver, method: tree.Ours, place: tree.Place) -> list[float]:
    begun = time.monotonic()
    cuda.empty(driver, users(place, driver), lock_seconds=LIMIT, seconds=LIMIT)
    free = time.monotonic() - begun
    method.save(place)
    # The dump found it stopped, by us.
    method.result = dataclasses.replace(method.result, stopped=())
    return [free, time.monotonic() - begun]


def ours_back(driver: Driver, method: tree.Ours, place: tree.Place) -> list[float]:
    begun = time.monotonic()
    method.bring_back(place)
    criu = time.monotonic() - begun
    cuda.fill(driver, users(place, driver), seconds=LIMIT)
    whole = time.monotonic() - begun
    return [whole, criu, whole - criu]


WAYS = {"bare": (bare, bare_back), "ours": (ours, ours_back)}


def measure(
    name: str,
    criu: criu_module.Criu,
    driver: Driver,
    pool: Pool,
    gib: float,
    kind: str,
) -> tuple[list[float], list[float], int]:
    save, back = WAYS[name]
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(dir=SHM))
        # The places have a /dev/shm of their own: they talk elsewhere.
        talk = Path(tempfile.mkdtemp(dir="/tmp"))
        for one in (folder, talk):
            stack.callback(shutil.rmtree, one)
        command = [sys.executable, "-c", PROGRAM, str(talk), str(gib), kind]
        place = tree.Place.make("start", *command)
        stack.callback(place.end)
        tree.wait_for((talk / "answer").exists)
        before = (talk / "answer").read_text()
        store = tree.open_store(folder, pool) if name == "ours" else None
        method = tree.Ours(criu, folder, store) if store else tree.Stock(criu, folder)
        saved = save(driver, method, place)
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        place.end()
        (talk / "answer").unlink()
        holding = tree.Place.make("hold")
        stack.callback(holding.end)
        resumed = back(driver, method, holding)
        (talk / "question").touch()
        tree.wait_for((talk / "answer").exists)
        if (talk / "answer").read_text() != before:
            sys.exit("its tensors came back changed")
        return saved, resumed, size


def table(
    criu: criu_module.Criu, driver: Driver, pool: Pool, args: argparse.Namespace
) -> None:
    print(
        f"{'GiB':>4} {'kind':<7} {'way':<5} {'free':>7} {'durable':>8} {'resumed':>8}"
        f"  {'(memory':>8} {'driver)':>8} {'stored':>9}"
    )
    for gib in args.gb:
        for kind in args.kinds:
            rows = {}
            for name in WAYS:
                runs = [
                    measure(name, criu, driver, pool, gib, kind)
                    for _ in range(args.runs)
                ]
                (free, durable), (resumed, memory, moved) = (
                    [statistics.median(v) for v in zip(*part, strict=True)]
                    for part in ([r[0] for r in runs], [r[1] for r in runs])
                )
                rows[name] = (free, durable, resumed)
                print(
                    f"{gib:>4g} {kind:<7} {name:<5} {free:>6.2f}s {durable:>7.2f}s"
                    f" {resumed:>7.2f}s  {memory:>7.2f}s {moved:>7.2f}s"
                    f" {runs[-1][2] / 2**30:>5.2f} GiB",
                    flush=True,
                )
            ratios = [o / b for o, b in zip(rows["ours"], rows["bare"], strict=True)]
            print(f"{'':>12} ratio " + "   ".join(f"{one:>6.2f}" for one in ratios))


def steady(rounds: int, seconds: float) -> None:
    nvml = Nvml()
    with subprocess.Popen(
        [sys.executable, "-c", STEADY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None

        def rate(*, sampled: bool) -> float:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(f"{seconds}\n")
            worker.stdin.flush()
            begun = time.time()
            while sampled and time.time() - begun < seconds - 0.5:
                nvml.look(time.time() - 1)
                time.sleep(1)
            return float(worker.stdout.readline())

        rate(sampled=False)
        ratios = []
        for number in range(rounds):
            # Who goes first changes, against a clock that drifts.
            pair = {
                one: rate(sampled=one) for one in (bool(number % 2), not number % 2)
            }
            ratios.append(pair[True] / pair[False])
        worker.kill()
    nvml.close()
    spread = f"{min(ratios):.4f} to {max(ratios):.4f}"
    print(f"steady: {statistics.median(ratios):.4f} of its speed ({spread}, {rounds})")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--gb", type=float, nargs="*", default=[1])
    words.add_argument("--kinds", nargs="+", default=["random", "zeros"])
    words.add_argument("--runs", type=int, default=1)
    words.add_argument("--steady", action="store_true")
    words.add_argument("--rounds", type=int, default=10)
    words.add_argument("--criu", type=Path, default=tree.ROOT / ".cache" / "criu")
    args = words.parse_args()
    driver = Driver()
    if not driver.present():
        sys.exit("there is no GPU here, or its driver is older than 570")
    pool = Pool()
    try:
        table(criu_module.locate(args.criu), driver, pool, args)
        if args.steady:
            steady(args.rounds, 2.0)
    finally:
        pool.close()
        driver.close()


if __name__ == "__main__":
    main()
