"""Waiting for descriptors of any number, and counting what they hold."""

import fcntl
import os
import resource
import socket

import pytest

from jupyterhub_gpu_reclaim.linux.descriptors import readable, unread_bytes


class End:
    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number


@pytest.fixture
def high_pipe():
    """A pipe whose read end has a number that select(2) does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("needs RLIMIT_NOFILE of 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    low, write = os.pipe()
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 2000)
    os.close(low)
    yield End(high), write
    os.close(high)
    os.close(write)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_readable_descriptor_above_1023_is_told_when_it_has_data(high_pipe):
    end, write = high_pipe
    assert readable([end], 0) == []
    os.write(write, b"x")
    assert readable([end], 10) == [end]


def test_readable_when_time_is_up_is_empty(high_pipe):
    end, _ = high_pipe
    assert readable([end], -1) == []
    assert readable([end], 0.01) == []


def test_readable_other_side_closed_is_told():
    read, write = os.pipe()
    os.close(write)
    end = End(read)
    assert readable([end], 10) == [end]
    os.close(read)


def test_unread_bytes_are_those_of_a_pipe_and_of_a_socket():
    read, write = os.pipe()
    one, other = socket.socketpair()
    with one, other, os.fdopen(read, "rb"), os.fdopen(write, "wb", 0) as end:
        assert unread_bytes(read) == unread_bytes(one.fileno()) == 0
        end.write(b"x" * 300)
        other.send(b"xyz")
        assert unread_bytes(read) == 300
        assert unread_bytes(one.fileno()) == 3
    with pytest.raises(OSError, match="Bad file descriptor"):
        unread_bytes(read)
