"""Whatever is wrong with our service, the Hub starts, lives, and starts servers."""

import contextlib
import signal
import socket
import threading
from collections import Counter

import pytest
import requests

from tests.support import failing_service
from tests.support.hub import wait_until


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A Hub that has not been started, for tests that leave it alive or dead."""
    yield from failing_service.stack(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def dead(shared):
    shared.hub.terminate()
    return shared


@pytest.fixture
def stack(shared):
    if not shared.lives():
        shared.start()
    wait_until(shared.ready, 90, shared.hub.log)
    return shared


@pytest.fixture
def own(tmp_path):
    yield from failing_service.stack(tmp_path)


def came_back(stack, before):
    """Wait for a service that is ready and is not that one.

    Five seconds on an idle machine; the Hub itself looks once a minute.
    """

    def anew():
        return stack.service() not in {0, before} and stack.ready()

    wait_until(anew, 30, stack.hub.log)


@contextlib.contextmanager
def beginning(stack):
    """Have the service start anew, which gets no further until the end."""
    slow = stack.folder / "slow"
    slow.touch()
    before = stack.end_service()
    try:
        wait_until(lambda: stack.service() not in {0, before}, 30, stack.hub.log)
        yield
    finally:
        slow.unlink()


class Caller(threading.Thread):
    """A program that asks again and again, and notes what it gets."""

    def __init__(self, stack):
        super().__init__()
        self._stack = stack
        self._ended = threading.Event()
        self.got: Counter[str] = Counter()

    def run(self):
        while not self._ended.wait(0.05):
            try:
                answer = self._stack.ask("api/sessions")
            except requests.RequestException as error:
                self.got[repr(error)] += 1
                continue
            with contextlib.suppress(ValueError):
                self.got[answer.json()["code"]] += 1
                continue
            self.got[f"the proxy's {answer.status_code}"] += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self.join(30)


@pytest.mark.timeout(360)  # ten starts beside other tests
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.long)])
def test_service_that_is_killed_is_back_each_time(stack, times):
    hub = stack.hub.process.pid
    with Caller(stack) as caller:
        for _ in range(times):
            came_back(stack, stack.end_service())
    assert stack.lives()
    assert stack.hub.process.pid == hub
    # Who comes while it is away waits. A request that has been taken ends with it.
    assert caller.got.pop("the proxy's 503", 0) <= times
    assert set(caller.got) <= {"unauthenticated", "service_starting"}
    assert caller.got["unauthenticated"] > times


def test_hub_with_settings_that_make_no_sense_lives_and_says_which(dead):
    stack = dead
    stack.start('idle_after="30m", idel_after=3, min_agee=1')
    answer = stack.ask("readyz")  # waits until it listens
    assert (answer.status_code, answer.json()["code"]) == (503, "service_broken")
    for words in (
        "not negative, not '30m'.",
        "no idel_after; did you mean idle_after?",
        "no min_agee; did you mean min_age?",
    ):
        assert words in answer.json()["message"]
        assert words in stack.hub.log()
    for path in ("", "sessions/ada/-"):
        page = stack.ask(path)
        assert page.status_code == 503
        assert "not negative, not " in page.text
    assert stack.ask("healthz").status_code == 200
    amy = stack.hub.user("amy")
    amy.start_server()
    stack.hub.stop_server("amy")
    assert stack.lives()
    assert "Traceback" not in stack.hub.log()
    stack.hub.terminate()  # mended in the next test


def test_hub_with_a_service_that_loads_slowly_is_up_before_it(dead):
    stack = dead
    (stack.folder / "slow").touch()
    stack.start("idle_after=1800")
    assert stack.lives()
    (stack.folder / "slow").unlink()
    assert stack.ask("healthz").status_code == 200
    wait_until(stack.ready, 90, stack.hub.log)


def test_service_is_started_until_it_does_not_die(stack):
    (stack.folder / "deadly").touch()
    stack.end_service()
    died = "exited with status -9"
    seen = stack.hub.log().count(died)
    wait_until(lambda: stack.hub.log().count(died) > seen + 2, 60, stack.hub.log)
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
def test_service_whose_loop_hangs_ends_itself_and_comes_back(own):
    stack = own
    (stack.folder / "hung").write_text("3")
    stack.start()
    wait_until(stack.ready, 90, stack.hub.log)
    before = stack.end_service(signal.SIGUSR1)
    wait_until(lambda: stack.service() != before, 30, stack.hub.log)
    assert "Timeout (0:00:03)!" in stack.hub.log()
    came_back(stack, before)
    assert stack.lives()


@pytest.mark.long
def test_address_that_somebody_else_has_does_not_end_the_hub(own):
    stack = own
    with socket.create_server(("127.0.0.1", stack.port)) as squatter:
        threading.Thread(target=_accept_and_say_nothing, args=(squatter,)).start()
        stack.start()
        assert stack.lives()
        taken = f"127.0.0.1:{stack.port} cannot be used"
        wait_until(lambda: taken in stack.hub.log(), 60, stack.hub.log)
        squatter.shutdown(socket.SHUT_RDWR)
    wait_until(stack.ready, 90, stack.hub.log)


def _accept_and_say_nothing(squatter: socket.socket) -> None:
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(squatter.accept())
    for one, _ in kept:
        one.close()
