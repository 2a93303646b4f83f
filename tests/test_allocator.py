"""Memory that many threads have freed goes back."""

import os
import subprocess
import sys

import pytest

#: Threads that allocate and free 13 MB each, one after the other, and stay.
PROGRAM = """
import sys, threading
from jupyterhub_gpu_reclaim.linux.libc import limit_arenas
if sys.argv[1:]:
    limit_arenas(int(sys.argv[1]))

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 1000000

def work():
    for _ in range(3):
        held = [bytearray(64000) for _ in range(200)]
        # One that outlives the others keeps all below it in an arena of its own.
        kept.append(bytearray(50))
        del held
    done.release()
    end.wait()

kept, done, end = [], threading.Semaphore(0), threading.Event()
threads = [threading.Thread(target=work) for _ in range(48)]
before = resident()
for thread in threads:
    thread.start()
    done.acquire()
print(resident() - before)
end.set()
"""


def grown(*arguments: str) -> int:
    """MB more after all the work."""
    # As many as on a machine of 16 cores.
    env = {**os.environ, "MALLOC_ARENA_MAX": "128"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return int(subprocess.check_output(command, env=env, text=True, timeout=60))


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_limit_arenas_bounds_what_threads_keep():
    assert grown() > 300
    assert grown("4") < 100
