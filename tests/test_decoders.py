"""Many threads that meet a type for the first time at once do not crash the program."""

import sys

from tests.support.ran import ran

RACE = """
import sys, threading
from jupyterhub_gpu_reclaim.common import codec, decoders
from jupyterhub_gpu_reclaim.node.operations.records import Record
sys.setswitchinterval(1e-6)
VALUES = {
    "operation": "nap", "incarnation": "i", "key": {"user": "ann"}, "begun": 1.0,
    "stage": "settled", "checkpoint": "", "init_pid": 1, "init_start": 1,
}
data, together, found = codec.encode(VALUES), threading.Barrier(6), []
def meet(way):
    together.wait()
    found.append(way().key.user)
ways = 3 * [
    lambda: codec.decode(data, Record), lambda: decoders.convert(VALUES, Record)
]
threads = [threading.Thread(target=meet, args=(way,)) for way in ways]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*found)
"""


def test_type_met_by_many_threads_at_once_is_understood_by_all():
    for _ in range(12):  # a third of them ended with a segmentation fault
        done = ran([sys.executable, "-c", RACE], timeout=60)
        assert (done.returncode, done.stdout) == (0, "ann ann ann ann ann ann\n"), done
