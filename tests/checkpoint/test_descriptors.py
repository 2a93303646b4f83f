"""Descriptors of other processes, looked at as sockets."""

import os
import socket
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux.descriptors import as_socket, borrow


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_socket_of_a_family_without_names_is_looked_at_and_closed_again():
    try:
        nameless = socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)
    except OSError as error:
        pytest.skip(f"this kernel has no AF_ALG: {error}")
    with nameless:
        myself = os.pidfd_open(os.getpid())
        before = descriptors()
        with borrow(myself, nameless.fileno()) as one:
            assert one.fileno() != nameless.fileno()
        assert descriptors() == before
        os.close(myself)


def test_what_is_no_socket_is_an_error_and_closed():
    before = descriptors()
    with pytest.raises(OSError, match="socket"):
        as_socket(os.open("/dev/null", os.O_RDONLY))
    assert descriptors() == before
