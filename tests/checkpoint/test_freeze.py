"""Stopping a tree: everybody, and nobody twice in the same moment."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree import freeze
from jupyterhub_gpu_reclaim.linux import processes, procfs
from tests.checkpoint.conftest import wait_for

#: Its child ends while it is stopped, which it would be told of.
PARENT = """
import signal, subprocess, time
signal.signal(signal.SIGCHLD, lambda *_: None)
child = subprocess.Popen(["sleep", "0.5"])
print("up", flush=True)
while True: time.sleep(100)
"""
_STOP = 1 << (signal.SIGSTOP - 1)
_CHILD = 1 << (signal.SIGCHLD - 1)


@pytest.fixture
def parent(places):
    place = places.start(sys.executable, "-c", PARENT)
    place.read_until("up")
    return place


@pytest.fixture
def sent(monkeypatch):
    """Signals to stop, by pid; the first of each waits, as on a busy machine."""
    pids, late = [], []
    really, waits = processes.send, processes.pending_signals

    def send(process, number):
        if number is not signal.SIGSTOP:
            return really(process, number)
        pids.append(process.pid)
        if pids.count(process.pid) > 1:
            return True
        late.append(threading.Timer(0.6, take, (process, number)))
        late[-1].start()
        return True

    def take(process, number):
        really(process, number)
        taken.append(process.pid)

    def pending(pid):
        return waits(pid) | (_STOP if pid in pids and pid not in taken else 0)

    taken = []
    monkeypatch.setattr(processes, "send", send)
    monkeypatch.setattr(processes, "pending_signals", pending)
    yield pids
    for one in late:
        one.join()


@pytest.mark.parametrize("stop", [freeze.freeze, freeze.stop])
def test_nobody_is_asked_to_stop_twice_in_the_same_moment(parent, sent, stop):
    stop(parent.init_pid, parent.init_start, timeout=10)
    assert parent.tree.server.stopped
    assert len(sent) == len(set(sent))


def test_strangers_are_not_read_one_by_one(parent, monkeypatch):
    """Another user may have tens of thousands of processes on the machine."""
    really, read = procfs.read, set()

    def noted(pid, *rest):
        read.add(pid)
        return really(pid, *rest)

    monkeypatch.setattr(procfs, "read", noted)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        tree, _ = freeze.freeze(parent.init_pid, parent.init_start, timeout=10)
        # The init, which is not stopped, may be on a processor in one look alone.
        assert tree.processes == parent.tree.processes
        freeze.thaw(tree)
    finally:
        stranger.kill()
        stranger.wait()
    assert parent.init_pid in read
    assert stranger.pid not in read


def test_nobody_is_asked_who_has_stopped_since_the_look(parent, monkeypatch):
    """As on a machine that is busy between the two."""
    monkeypatch.setattr(freeze, "_AGAIN_SECONDS", 0.0)
    server, asked = parent.tree.server, freeze._Asked()
    assert asked.due([server]) == [server]
    os.kill(server.pid, signal.SIGSTOP)
    wait_for(lambda: parent.tree.server.stopped)
    assert asked.due([server]) == []


def test_who_was_let_go_on_meanwhile_is_asked_again(parent, monkeypatch):
    """By its user, before it had stopped: the signal is gone."""
    really, lost = processes.send, []

    def send(process, number):
        if number is signal.SIGSTOP and process.pid not in lost:
            lost.append(process.pid)
            return True
        return really(process, number)

    monkeypatch.setattr(processes, "send", send)
    freeze.freeze(parent.init_pid, parent.init_start, timeout=10)
    assert parent.tree.server.stopped


def test_tree_whose_children_end_while_it_stands_is_saved(parent, engine):
    """What CRIU does with a second signal to stop, beside the end of a child."""
    freeze.freeze(parent.init_pid, parent.init_start, timeout=10)
    server = parent.tree.server
    for process in parent.tree.processes:
        if process.name == "sleep":
            os.kill(process.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while not pending(server.pid) & _CHILD and time.monotonic() < until:
        time.sleep(0.01)
    assert pending(server.pid) & (_CHILD | _STOP) == _CHILD
    result = engine.dump(parent, engine.image().sink)
    assert server.ns_pid in result.pids


def pending(pid: int) -> int:
    return int(procfs.status(pid)["ShdPnd"], 16)


#: Its main thread ends at once (exit(2), which ends one thread alone).
WITHOUT_MAIN_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of exit(2)")
def test_process_is_gone_with_its_last_thread_not_with_its_main_one():
    """As an init is while it ends: its last thread waits for all of its namespace."""
    program = subprocess.Popen([sys.executable, "-c", WITHOUT_MAIN_THREAD])
    try:
        wait_for(lambda: procfs.stat(program.pid)[:1] == ["Z"])
        fields = procfs.stat(program.pid)
        one = processes.Process(
            pid=program.pid,
            ns_pid=program.pid,
            ppid=os.getpid(),
            name="python",
            state="S",
            start_time=int(fields[processes.START_TIME]),
            uid=0,
        )
        assert processes.wait_gone([one], time.monotonic() + 0.2) == [one]
        program.kill()
        assert processes.wait_gone([one], time.monotonic() + 20) == []
    finally:
        program.kill()
        program.wait()
