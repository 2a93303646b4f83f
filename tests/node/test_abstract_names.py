"""Sessions that share a network namespace, and its abstract names of UNIX sockets.

libcuda binds one made of the number of its pid namespace and its pid there. The kernel
gives the numbers of ended namespaces to new ones, and all sessions begin at the same
pids, so two sessions come to want one name.
"""

import contextlib
import errno
import socket

import pytest

from tests.support.agent import wait_for

pytestmark = pytest.mark.shares_an_agent

#: As libcuda does, a name as long as there is room for, too.
BIND = """
import os, socket
number = os.stat("/proc/self/ns/pid").st_ino
one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
one.bind(f"\\0cuda-uvmfd-{number}-{os.getpid()}")
long = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
long.bind(f"\\0cuda-uvmfd-{number}-{os.getpid()}".ljust(108, "\\0"))
"""
NAMES = "[one.getsockname(), long.getsockname()]"
PROPER = (
    "[(name := f'\\0cuda-uvmfd-{os.stat(\"/proc/self/ns/pid\").st_ino}-{os.getpid()}')"
    ".encode(), name.ljust(108, '\\0').encode()]"
)


@contextlib.contextmanager
def bound(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as one:
        wait_for(lambda: _binds(one, name))  # a look of the agent's may have a copy
        yield one


def _binds(one, name):
    try:
        one.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def suspended(agent, server, checkpoint):
    agent.suspend(server.place, checkpoint)


def test_name_of_a_pid_namespace_is_that_of_the_new_one(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, BIND)
    had = eval(server.run(kernel, NAMES))
    assert had == eval(server.run(kernel, PROPER))
    holding = places("hold")  # while the other is there, so its number is another
    suspended(agent, server, "cp-1")
    # Another session has been given the number meanwhile, and the same pid.
    with bound(socket.SOCK_DGRAM, had[0]), bound(socket.SOCK_STREAM, had[1]):
        agent.come_back(holding, "cp-1")
        now = eval(server.run(kernel, NAMES))
        assert now == eval(server.run(kernel, PROPER))
        assert now != had
    # It sits on no name that the next session with that number needs.
    with bound(socket.SOCK_DGRAM, had[0]), bound(socket.SOCK_STREAM, had[1]):
        pass


@pytest.mark.long
def test_name_that_another_program_has_is_told_before_anything(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    name = f"\0reclaim-test-{server.port}"
    server.run(kernel, "import socket")
    server.run(kernel, "one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)")
    server.run(kernel, f"one.bind({name!r}); one.listen()")
    suspended(agent, server, "cp-2")
    holding = places("hold")
    agent.kill()  # while it is there, it holds the name
    with bound(socket.SOCK_STREAM, name):
        agent.start()
        failed = agent.restore(holding, "cp-2")[-1]["failure"]
    assert failed["code"] == "name_in_use"
    assert f"@reclaim-test-{server.port}" in failed["message"]
    assert failed["retryable"]
    # A socket of another kind has names of its own.
    with bound(socket.SOCK_DGRAM, name):
        again = agent.restore(places("hold"), "cp-2")
    assert again[-1].get("tree"), again[-1]
