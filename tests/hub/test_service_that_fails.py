"""Whatever is wrong with our service, the Hub starts, lives, and starts servers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading

import pytest

from tests.support import failing_service
from tests.support.failing_service import Stack
from tests.support.hub import proxy_command, wait_until
from tests.support.relaunching_service import RelaunchingService

#: Words in the commands of the service's two programs.
SERVICE, SUPERVISOR = "gpu_reclaim.service.app", "gpu-reclaim-service"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A Hub that has not been started, for tests that leave it alive or dead."""
    yield from failing_service.stack(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def dead(shared):
    """That Hub, ended."""
    shared.hub.terminate()
    return shared


@pytest.fixture
def stack(shared):
    """That Hub, with a service that works."""
    if not shared.lives():
        shared.start()
    wait_until(shared.ready, 90, shared.hub.log)
    return shared


@pytest.fixture
def own(tmp_path):
    """A Hub of a test's own."""
    yield from failing_service.stack(tmp_path)


def kill(stack, program):
    """Kill a program of the service; its pids."""
    pids = stack.program(program)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


@contextlib.contextmanager
def beginning(stack):
    """Have the whole service start anew, which gets no further until the end."""
    slow = stack.folder / "slow"
    slow.touch()
    before = stack.program(SERVICE)
    kill(stack, SUPERVISOR)
    try:
        wait_until(lambda: anew(stack, before), 30, stack.hub.log)
        yield
    finally:
        slow.unlink()


def anew(stack, before):
    """Whether there is a service, and none of those before."""
    now = stack.program(SERVICE)
    return bool(now) and not {*now} & {*before}


def came_back(stack, before):
    """Wait for a service that is ready and is none of those before."""
    wait_until(lambda: anew(stack, before) and stack.ready(), 90, stack.hub.log)


def test_hub_with_settings_that_make_no_sense_lives_and_says_which(dead):
    stack = dead
    stack.start(
        'idle_after="30m", idel_after=3, service_options={"Guards.min_agee": 1}'
    )
    answer = stack.ask("readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "service_broken")
    for words in (
        "'30m'; 30m is 1800",
        "no idel_after; did you mean idle_after?",
        "Guards.min_agee is no setting; did you mean min_age?",
    ):
        assert words in answer.json()["message"]
        assert words in stack.hub.log()
    page = stack.ask("")
    assert page.status_code == 200
    assert "30m is 1800" in page.text
    assert stack.ask("sessions/ada/-/fresh").status_code == 503
    amy = stack.hub.user("amy")
    amy.start_server()
    stack.hub.stop_server("amy")
    assert stack.lives()
    stack.hub.terminate()  # mended in the next test


def test_hub_with_a_service_that_loads_slowly_is_up_before_it_and_outlives_both(dead):
    """Its supervisor is killed meanwhile: what it was loading ends."""
    stack = dead
    (stack.folder / "slow").touch()
    stack.start("idle_after=1800")
    answer = stack.ask("readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "service_starting")
    assert stack.ask("healthz").status_code == 200
    assert "is starting" in stack.ask("").text
    (orphan,) = stack.program(SERVICE)
    kill(stack, SUPERVISOR)
    (stack.folder / "slow").unlink()
    wait_until(lambda: orphan not in stack.program(SERVICE), 30, stack.hub.log)
    wait_until(stack.ready, 90, stack.hub.log)
    assert stack.lives()


def test_service_that_is_killed_comes_back(stack):
    came_back(stack, kill(stack, SERVICE))
    assert stack.lives()


def test_killed_supervisor_comes_back_and_tries_until_its_service_does_not_die(stack):
    before = stack.program(SUPERVISOR)
    with beginning(stack):
        (stack.folder / "deadly").touch()
    wait_until(
        lambda: "ended by signal 9" in stack.ask("readyz").text, 30, stack.hub.log
    )
    assert not {*before} & {*stack.program(SUPERVISOR)}
    assert stack.lives()
    (stack.folder / "deadly").unlink()
    wait_until(stack.ready, 90, stack.hub.log)


def test_journal_that_cannot_be_opened_is_said_and_tried_again(stack):
    journal = stack.folder / "state" / "journal.sqlite"
    with beginning(stack):
        for file in journal.parent.glob("journal.sqlite*"):
            file.unlink()
        journal.mkdir()
    wait_until(
        lambda: '"service_broken"' in stack.ask("readyz").text, 60, stack.hub.log
    )
    assert stack.lives()
    journal.rmdir()
    wait_until(stack.ready, 90, stack.hub.log)


@pytest.mark.long
def test_address_that_somebody_else_has_does_not_end_the_hub(own):
    stack = own
    with socket.create_server(("127.0.0.1", stack.port)) as squatter:
        threading.Thread(target=_accept_and_say_nothing, args=(squatter,)).start()
        stack.start(patience=2, more="")
        assert stack.lives()
        assert "goes on without it" in stack.hub.log()
        assert f"127.0.0.1:{stack.port} cannot be used" in stack.hub.log()
        squatter.shutdown(socket.SHUT_RDWR)
    wait_until(stack.ready, 90, stack.hub.log)


def _accept_and_say_nothing(squatter: socket.socket) -> None:
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(squatter.accept())
    for one, _ in kept:
        one.close()


@pytest.mark.long
def test_saved_session_is_not_started_cold_while_the_service_cannot_work(tmp_path):
    if os.geteuid() != 0 or proxy_command() is None:
        pytest.skip("needs root and configurable-http-proxy")
    with RelaunchingService(tmp_path) as double:
        stack = Stack(tmp_path, double)
        try:
            stack.hub.start()
            amy = stack.hub.user("amy")
            amy.start_server()
            double.capture("amy")
            stack.hub.stop_server("amy")
            pointer = stack.hub.server("amy")["state"]["gpu_reclaim"]
            assert pointer["phase"] == "suspended"
            stack.hub.terminate()
            stack.start("min_age=-1")
            answer = stack.hub.api("POST", "users/amy/server")
            assert answer.status_code == 409
            assert "min_age must be a duration in seconds" in answer.text
            assert stack.hub.server("amy")["state"]["gpu_reclaim"] == pointer
            stack.hub.user("bob").start_server()
        finally:
            stack.hub.close()
