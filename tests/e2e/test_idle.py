"""Who is at work is not suspended, and who is not is: a real Hub with a policy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from demo.admin import Admin
from demo.user import User
from tests.support import light_server
from tests.support.hub import wait_until
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)

#: Much shorter than the upload, and longer than two samples are apart.
IDLE_AFTER = 5
PROMPT_IDLE_AFTER = 9
PIECES, PIECE = 24, b"x" * 100_000


def slowly() -> Iterator[bytes]:
    """A file of 2.4 MB, as the page sends it, in some twelve seconds."""
    yield b'{"type": "file", "format": "text", "content": "'
    for _ in range(PIECES):
        yield PIECE
        time.sleep(0.5)
    yield b'"}'


@pytest.fixture(scope="module", name="stack")
def stack_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A Hub that suspends whoever is idle for some seconds."""
    folder = tmp_path_factory.mktemp("s")  # short: sockets stand in it
    settings = {
        "idle_after": IDLE_AFTER,
        "sample_interval": 1,
        "warn_for": 0,
        "server": light_server.COMMAND,
        "service_options": {
            "IdlePolicy.prompt_idle_after": PROMPT_IDLE_AFTER,
        },
    }
    with Stack(folder, **settings) as stack:
        yield stack


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


def test_upload_comes_to_its_end_and_an_idle_session_is_suspended(stack: Stack) -> None:
    admin = Admin(stack)
    arrived(stack, "bob")
    busy = arrived(stack, "ada")  # who would be idle while another one starts
    server = busy.server()
    answer = server.api("PUT", "contents/large.txt", data=slowly())
    assert answer.status_code == 201, answer.text
    assert answer.json()["size"] == PIECES * len(PIECE)
    whats = [h["what"] for h in admin.call("GET", "sessions/ada/-/history")]
    assert "suspend" not in whats
    # The other one, who did nothing, has gone meanwhile.
    assert admin.session("bob")["phase"] == "suspended"


@pytest.mark.long
def test_cell_that_waits_for_an_answer_is_idle_in_its_time_and_gets_the_answer_later(
    stack: Stack,
) -> None:
    admin, user = Admin(stack), arrived(stack, "cleo")
    with user.server().start_kernel() as kernel:
        cell = kernel.send("print('the answer is', input('how many? '))", asks=True)
        assert kernel.wait_for_question() == "how many? "
        asked = time.time()
        wait_until(lambda: why(admin, "cleo") == "prompt_open", 30)
        suspended = admin.wait("cleo", phase="suspended", seconds=60)
    assert suspended["since"] - asked >= PROMPT_IDLE_AFTER - 1
    user.visit(f"{user.server().prefix}lab")
    with kernel:
        kernel.answer("42")
        assert kernel.collect(cell).text.endswith("the answer is 42\n")
