"""Dump, end, restore elsewhere: everything goes on. Real processes, real CRIU."""

from __future__ import annotations

import sys

from jupyterhub_gpu_reclaim.engine.restore import proceed

COUNTER = """
import sys, time
for number in range(10**9):
    print("count", number, flush=True)
    time.sleep(0.02)
"""


def test_cycle_counter_goes_on_with_same_pids(places, engine):
    place = places.start(sys.executable, "-c", COUNTER)
    place.read_until("count 3\n")
    pids = [(p.ns_pid, p.name) for p in place.tree.processes]
    for _ in range(3):
        image = engine.image()
        result = engine.dump(place, image.sink)
        assert {p.state for p in place.tree.processes} == {"T"}
        place.kill()
        printed = place.read_rest()
        last = printed.split()[-1]
        place = places.hold()
        restored = engine.restore(place, image.source, result)
        assert {p.state for p in place.tree.processes} == {"T"}
        proceed(restored, result.stopped)
        assert place.read_until(f"count {int(last) + 5}\n").splitlines()[0] == (
            f"count {int(last) + 1}"
        )
        assert [(p.ns_pid, p.name) for p in place.tree.processes] == pids
