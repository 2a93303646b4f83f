"""Who is at work is not suspended, and who is not is: a real Hub with a rule."""

import time
from collections.abc import Iterator

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.conftest import IDLE_AFTER, PROMPT_IDLE_AFTER
from tests.support.hub import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)

#: Longer than the idle time, in all.
PIECES, PIECE = 20, b"x" * 100_000


def slowly() -> Iterator[bytes]:
    """A file of 2 MB, as the page sends it, in twice the idle time."""
    yield b'{"type": "file", "format": "text", "content": "'
    for _ in range(PIECES):
        yield PIECE
        time.sleep(2 * IDLE_AFTER / PIECES)
    yield b'"}'


def arrived(stack: Stack, name: str) -> User:
    """A user whose server runs."""
    user = User(stack.url, name, stack.password)
    user.login()
    user.start_server()
    return user


def why(admin: Admin, name: str) -> str | None:
    """Why that user's session is not suspended now."""
    verdict = admin.session(name)["verdict"]
    return str(verdict["code"]) if verdict else None


def test_upload_comes_to_its_end_and_an_idle_session_is_suspended(
    stack: Stack, admin: Admin
) -> None:
    arrived(stack, "idle-bob")
    busy = arrived(stack, "idle-ada")  # who would be idle while another one starts
    server = busy.server()
    answer = server.api("PUT", "contents/large.txt", data=slowly())
    assert answer.status_code == 201, answer.text
    assert answer.json()["size"] == PIECES * len(PIECE)
    whats = [h["what"] for h in admin.call("GET", "sessions/idle-ada/-/history")]
    assert "suspend" not in whats
    # The other one, who did nothing, goes.
    admin.wait("idle-bob", phase="suspended")


@pytest.mark.long
def test_cell_that_waits_for_an_answer_is_idle_in_its_time_and_gets_the_answer_later(
    stack: Stack, admin: Admin
) -> None:
    user = arrived(stack, "idle-cleo")
    with user.server().start_kernel() as kernel:
        cell = kernel.send("print('the answer is', input('how many? '))", asks=True)
        assert kernel.wait_for_question() == "how many? "
        asked = time.time()
        wait_until(lambda: why(admin, "idle-cleo") == "prompt_open", 30)
        suspended = admin.wait("idle-cleo", phase="suspended", seconds=60)
    assert suspended["since"] - asked >= PROMPT_IDLE_AFTER - 1
    user.visit(f"{user.server().prefix}lab")
    with kernel:
        kernel.answer("42")
        assert kernel.collect(cell).text.endswith("the answer is 42\n")
