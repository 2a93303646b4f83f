"""A session goes on without a signal that nobody has sent it."""

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.freeze import thaw
from jupyterhub_gpu_reclaim.linux import processes

HANDLES = """
import signal
heard = []
signal.signal(signal.SIGCONT, lambda *_: heard.append("continued"))
signal.signal(signal.SIGCHLD, lambda *_: heard.append("child"))
0
"""
#: As for signalfd(2) or sigwait(3); in all of its threads.
BLOCKS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
0
"""
THREADS = """
import threading
threads = [threading.Thread(target=time.sleep, args=(99,), daemon=True)
           for _ in range(5)]
for one in threads:
    one.start()
"""


@pytest.mark.parametrize("way", ["thaw", "return"])
def test_handler_of_the_continuing_signal_is_not_called(places, engine, way):
    world = places.world()
    world(HANDLES)
    world(THREADS)
    for _ in range(3):
        if way == "return":
            world = engine.cycle(world, places)
        else:
            result = engine.dump(world.place, engine.image().sink)
            thaw(world.place.tree, result.stopped)
        assert world("heard") == []
    # A signal that somebody sends is heard, one that came meanwhile as well.
    world("os.kill(os.getpid(), signal.SIGCONT); time.sleep(0.1)")
    assert world("heard") == ["continued"]
    result = engine.dump(world.place, engine.image().sink)
    processes.send(world.place.tree.processes[-1], 17)
    thaw(world.place.tree, result.stopped)
    world("time.sleep(0.1)")
    assert world("heard") == ["continued", "child"]


def test_blocked_one_does_not_wait_for_whoever_asks(places, engine):
    world = places.world()
    world(BLOCKS)
    world(THREADS)
    result = engine.dump(world.place, engine.image().sink)
    thaw(world.place.tree, result.stopped)
    assert world("signal.sigpending()") == set()
    assert world("[int(one) for one in signal.pthread_sigmask(0, [])]") == [18]
