"""A store with little room: what is larger than that, and shrinks, is saved."""

import subprocess
import sys

import pytest

from tests.support.agent import running_agent, wait_for

MB = 10**6
STORE_MB = 60

#: Zeros that are in memory.
PROGRAM = f"""
import sys, time
zeros = bytearray({400 * MB})
for page in range(0, len(zeros), 4096):
    zeros[page] = 0
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.fixture
def small_agent(folder):
    store = folder / "store"
    store.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", f"size={STORE_MB}m,mode=0700", "tmpfs", str(store)]
    subprocess.run(["mount", *options], check=True)
    try:
        with running_agent(folder) as made:
            yield made
            for one in made.get("/v1/checkpoints").json():
                made.post(f"/v1/checkpoints/{one['id']}/discard")
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)


def test_pool_of_zeros_larger_than_the_store_is_saved(small_agent, places):
    place = places("start", sys.executable, "-I", "-S", "-c", PROGRAM, env={})
    wait_for(lambda: place.output.stat().st_size)
    captured = small_agent.capture(place, "cp")
    info = captured[-1]["checkpoint"]
    assert info["logical_bytes"] > 400 * MB
    assert info["stored_bytes"] < 20 * MB
