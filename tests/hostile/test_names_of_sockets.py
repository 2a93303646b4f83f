"""Nobody keeps another's suspended session from coming back by the abstract names of
its UNIX sockets, which the machine's sessions share.

The attacker is a program of another user.
"""

import contextlib
import socket

import pytest

from jupyterhub_gpu_reclaim.checkpoint.sockets import held
from jupyterhub_gpu_reclaim.checkpoint.sockets.abstract_names import Name
from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
from tests.hostile.test_ports import suspend
from tests.node.conftest import agent, folder, jupyter, places

__all__ = ["agent", "folder", "jupyter", "places"]


@contextlib.contextmanager
def bound(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.bind(name)
        yield one


def takes_messages(kind, name) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as client:
        try:
            client.connect(name)
            return client.send(b"x") > 0
        except (ConnectionRefusedError, BrokenPipeError):
            return False


def test_name_of_a_suspended_session_cannot_be_taken(agent, jupyter, places):
    server = jupyter()
    kernel = server.start_kernel()
    name = f"\0reclaim-test-{server.port}"
    server.run(kernel, "import socket; one = socket.socket(socket.AF_UNIX)")
    server.run(kernel, f"one.bind({name!r}); one.listen()")
    server.run(kernel, "two = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)")
    server.run(kernel, f"two.bind({name!r})")
    suspend(agent, server.place)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with pytest.raises(OSError, match="in use"), bound(kind, name):
            pass
        assert not takes_messages(kind, name)  # who connects does not hang
    agent.kill()
    agent.start()  # it holds them again
    with pytest.raises(OSError, match="in use"), bound(socket.SOCK_STREAM, name):
        pass
    restored = agent.restore(places("hold"), "cp")[-1]
    assert restored.get("tree"), restored
    shown = server.run(kernel, "one.getsockname() == two.getsockname()")
    assert shown == "True"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)


def test_names_of_one_user_are_bounded(tmp_path):
    ports = HeldPorts(tmp_path, per_user=2)
    names = [Name(socket.SOCK_STREAM, b"\0reclaim-%d" % one) for one in range(3)]
    ports.hold("one", "ada", [], names=names)
    ports.hold("two", "ada", [], names=names)
    assert ports.names("one") == frozenset(names[:2])
    assert ports.names("two") == frozenset()
    assert HeldPorts(tmp_path).checkpoints() == ["one"]
    ports.let_go("one")
    assert not ports.names("one")


def test_name_that_a_quicker_program_has_is_held_when_it_is_free(tmp_path):
    ports = HeldPorts(tmp_path, per_user=held.PER_USER)
    name = Name(socket.SOCK_STREAM, b"\0reclaim-quicker")
    ports.hold("one", "ada", [], names=[name])
    ports.let_names_go("one")
    with bound(*name):
        ports.take_again("one")
    assert ports.missing() == []
    with pytest.raises(OSError, match="in use"), bound(*name):
        pass
    ports.let_go("one")
