"""What an agent's looking costs a session that computes: nothing, it should be.

    sudo .venv/bin/python benchmarks/gpu_steady.py --rounds 10

A bf16 matrix product runs for two seconds with and without a look at the card every
second, in turns; prints the median of the ratios. The goal is at least 0.995.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

PROGRAM = """
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


def steady(rounds: int, seconds: float) -> None:
    nvml = Nvml()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
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
                nvml.measure(time.time() - 1)
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


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--rounds", type=int, default=10)
    steady(words.parse_args().rounds, 2.0)
