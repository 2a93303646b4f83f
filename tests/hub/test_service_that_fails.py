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

stack = pytest.fixture(failing_service.stack)


def test_hub_with_settings_that_make_no_sense_lives_and_says_which(stack):
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
    stack.hub.terminate()  # mended
    stack.start("idle_after=1800")
    wait_until(stack.ready, 90, stack.hub.log)


def test_hub_with_a_service_that_loads_slowly_is_up_before_it(stack):
    (stack.folder / "slow").touch()
    stack.start()
    answer = stack.ask("readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "service_starting")
    assert stack.ask("healthz").status_code == 200
    assert "is starting" in stack.ask("").text
    (stack.folder / "slow").unlink()
    wait_until(stack.ready, 90, stack.hub.log)
    assert stack.lives()


def test_service_that_dies_at_every_start_leaves_the_hub_up_until_it_does_not(stack):
    (stack.folder / "deadly").touch()
    stack.start()
    wait_until(
        lambda: "ended by signal 9" in stack.ask("readyz").json()["message"],
        30,
        stack.hub.log,
    )
    assert stack.lives()
    (stack.folder / "deadly").unlink()
    wait_until(stack.ready, 90, stack.hub.log)


def test_service_and_supervisor_that_are_killed_come_back_under_the_same_hub(stack):
    stack.start()
    wait_until(stack.ready, 90, stack.hub.log)
    (service,) = before = stack.program("gpu_reclaim.service.app")
    os.kill(service, signal.SIGKILL)
    came_back(stack, before)
    before = stack.program("gpu_reclaim.service.app")
    for pid in stack.program("gpu-reclaim-service"):
        os.kill(pid, signal.SIGKILL)
    came_back(stack, before)
    assert stack.lives()


def test_service_whose_supervisor_is_killed_while_it_loads_ends(stack):
    (stack.folder / "slow").touch()
    stack.start()
    assert stack.ask("readyz").json()["code"] == "service_starting"
    (orphan,) = stack.program("gpu_reclaim.service.app")
    (supervisor,) = stack.program("gpu-reclaim-service")
    os.kill(supervisor, signal.SIGKILL)
    (stack.folder / "slow").unlink()
    wait_until(
        lambda: orphan not in stack.program("gpu_reclaim.service.app"),
        30,
        stack.hub.log,
    )
    wait_until(stack.ready, 90, stack.hub.log)


def came_back(stack, before):
    """Wait for a service that is ready and is none of those before."""

    def anew() -> bool:
        now = stack.program("gpu_reclaim.service.app")
        return bool(now) and not {*now} & {*before} and stack.ready()

    wait_until(anew, 90, stack.hub.log)


def test_journal_that_cannot_be_opened_is_said_and_tried_again(stack):
    journal = stack.folder / "state" / "journal.sqlite"
    journal.mkdir(parents=True)
    stack.start()
    wait_until(
        lambda: stack.ask("readyz").json()["code"] == "service_broken",
        60,
        stack.hub.log,
    )
    assert stack.lives()
    journal.rmdir()
    wait_until(stack.ready, 90, stack.hub.log)


@pytest.mark.long
def test_address_that_somebody_else_has_does_not_end_the_hub(stack):
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
