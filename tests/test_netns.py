"""Sockets made in somebody else's network namespace."""

import os
import socket
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.linux import netns, processes

ALONE = """
import fcntl, socket, struct
one = socket.socket()
fcntl.ioctl(one, 0x8914, struct.pack("16sh22x", b"lo", 1))
listener = socket.create_server(("127.0.0.1", 8888))
print(flush=True)
connection, _ = listener.accept()
connection.sendall(b"from inside")
"""


@pytest.fixture
def alone():
    """A program that listens in a network of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes a network namespace")
    words = ("unshare", "--net", sys.executable, "-I", "-S", "-c", ALONE)
    with subprocess.Popen(words, stdout=subprocess.PIPE) as popen:
        popen.stdout.readline()
        yield popen.pid
        popen.kill()


def test_socket_of_another_network_reaches_its_loopback(alone):
    start = processes.start_time(alone)
    with netns.make_socket(
        alone, socket.AF_INET, socket.SOCK_STREAM, start=start
    ) as made:
        made.settimeout(30)
        made.connect(("127.0.0.1", 8888))
        assert made.recv(100) == b"from inside"


def test_socket_for_another_process_of_that_number_is_not_made(alone):
    with pytest.raises(ProcessLookupError):
        netns.make_socket(alone, socket.AF_INET, socket.SOCK_STREAM, start=1)
    with pytest.raises(OSError, match="No such file"):
        netns.make_socket(2**22 + 1, socket.AF_INET, socket.SOCK_STREAM)


def test_socket_of_the_own_network_is_a_plain_one():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        netns.make_socket(os.getpid(), socket.AF_INET, socket.SOCK_STREAM) as made,
    ):
        made.connect(listener.getsockname())
        assert made.getpeername() == listener.getsockname()
