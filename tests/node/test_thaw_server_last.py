"""A restored tree goes on, its server last; and at once where that cannot be had."""

import signal
import socket
import threading
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import RestoreResult
from jupyterhub_gpu_reclaim.linux import processes, ptrace
from jupyterhub_gpu_reclaim.node.jupyter import wake_up
from jupyterhub_gpu_reclaim.node.jupyter.connection import ConnectionFile
from jupyterhub_gpu_reclaim.node.jupyter.wake_up import WakeUp
from jupyterhub_gpu_reclaim.node.requirements import (
    HostRequirements,
    rights_of,
    this_machine,
)
from tests.support.agent import goes_on
from tests.support.served import here


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def wake(listener):
    """A wake-up for a server and a kernel that both never answer."""
    port = listener.getsockname()[1]
    with WakeUp(here(port)) as made:
        made.queue({"k": ConnectionFile(shell_port=port)}, [])
        yield made


@pytest.fixture
def saved(counter):
    """A tree that stands as after a restore, and what is known of it."""
    for process in counter.tree.processes:
        processes.send(process, signal.SIGSTOP)
    tree = processes.wait_stopped(counter.init_pid, counter.init_start, timeout=20)
    world = HostRequirements(
        machine=this_machine(),
        root=tree.root.ns_pid,
        server=tree.server.ns_pid,
        uid=0,
        pids=[],
        rights=rights_of([]),
    )
    return RestoreResult(tree), world


def test_server_whose_kernel_never_answers_is_held_for_a_moment_only(
    counter, wake, saved
):
    begun = time.monotonic()
    wake_up.thaw_server_last(wake, *saved)
    assert time.monotonic() - begun >= 0.5
    assert goes_on(counter)


def test_server_without_kernels_is_not_held(counter, listener, saved, monkeypatch):
    monkeypatch.setattr(ptrace, "standing", None)
    with WakeUp(here(listener.getsockname()[1])) as wake:
        wake.queue({}, [])
        wake_up.thaw_server_last(wake, *saved)
    assert goes_on(counter)


def test_server_that_somebody_else_holds_goes_on_with_the_others(counter, wake, saved):
    server = saved[0].tree.server
    held, enough = threading.Event(), threading.Event()

    def hold():
        with ptrace.standing(server.pid, but=(), seconds=20):
            held.set()
            enough.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert held.wait(60)
        wake_up.thaw_server_last(wake, *saved)
    finally:
        enough.set()
        other.join()
    assert goes_on(counter)


def test_wait_kernel_that_never_stops_talking_keeps_nobody(listener, wake):
    taken = [listener.accept()[0] for _ in range(2)]
    over = threading.Event()

    def talk():
        for one in taken:
            one.settimeout(0.05)
        while not over.is_set():
            try:
                taken[1].send(b"x" * 65536)
            except OSError:
                return

    talking = threading.Thread(target=talk)
    talking.start()
    try:
        assert not wake.wait(0.2)
    finally:
        over.set()
        talking.join()
        for one in taken:
            one.close()
