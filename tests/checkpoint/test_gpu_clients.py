"""MPS and profilers are known by what they leave in a process, before it is touched."""

import mmap
import os
import socket
import subprocess
import sys

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import (
    clients_of_mps,
    examine_clients,
    tool_in,
)
from jupyterhub_gpu_reclaim.linux import processes

if os.geteuid() != 0:
    pytest.skip("needs root: a list of sockets", allow_module_level=True)

ME = os.getpid()
#: Calls itself as it is told and keeps whom it has accepted; ends with its input.
SERVER = """
import socket, sys
open("/proc/self/comm", "w").write(sys.argv[1])
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen()
print("ready", flush=True)
kept = listener.accept()
print("accepted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def connected(tmp_path):
    opened = []

    def connect(name: str) -> int:
        path = str(tmp_path / "control")
        popen = subprocess.Popen(
            [sys.executable, "-SIc", SERVER, name, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        client = socket.socket(socket.AF_UNIX)
        opened.extend((popen, client))
        assert popen.stdout.readline() == "ready\n"
        client.connect(path)
        assert popen.stdout.readline() == "accepted\n"
        return popen.pid

    yield connect
    for popen, client in zip(opened[::2], opened[1::2], strict=True):
        client.close()
        popen.communicate()


@pytest.fixture
def mapped(tmp_path):
    """Map a file of that name into this process."""
    maps = []

    def open_(name: str) -> None:
        file = tmp_path / name
        file.write_bytes(bytes(4096))
        with file.open("rb") as opened:
            maps.append(mmap.mmap(opened.fileno(), 4096, prot=mmap.PROT_READ))

    yield open_
    for one in maps:
        one.close()


def test_who_talks_to_mps_is_its_client_and_its_server_is_told_too(connected):
    assert clients_of_mps([ME]) == set()
    server = connected("nvidia-cuda-mps-server")
    assert clients_of_mps([ME, server]) == {ME, server}


def test_who_talks_to_another_program_is_no_client(connected):
    server = connected("nvidia-persistenced")
    assert clients_of_mps([ME, server]) == set()


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("libToolsInjection64.so", "Nsight Systems"),
        ("libToolsInjectionProxy64.so", "Nsight Systems"),
        ("libcuda-injection.so", "Nsight Compute"),
        ("libsanitizer-collection.so", "Compute Sanitizer"),
        ("libcuinj64.so.12.1", "nvprof"),
        ("libcupti.so.12", ""),
        ("my-libcuda-injection.so", ""),
    ],
)
def test_a_tool_is_known_by_its_library_and_cupti_alone_is_none(mapped, name, tool):
    mapped(name)
    assert tool_in(ME) == tool


def test_a_process_that_has_ended_has_no_company():
    with subprocess.Popen(["true"]) as popen:
        popen.wait()
        assert clients_of_mps([popen.pid]) == set()
        assert tool_in(popen.pid) == ""


def test_what_is_found_is_said_of_the_process_as_the_session_knows_it(mapped):
    me = processes.snapshot_init(ME)
    assert list(examine_clients([me], [])) == []
    mapped("libToolsInjection64.so")
    shared, profiled = examine_clients([me], [ME])
    assert (shared.code, profiled.code) == ("gpu_mps", "gpu_profiled")
    assert f"Process {me.ns_pid} (" in shared.message
    assert "Nsight Systems" in profiled.message
    assert shared.fatal
    assert profiled.fatal
