"""Who is at work is not suspended, and who is not is: a real Hub with a rule."""

import time
from collections.abc import Iterator

import pytest

from demo.admin import Admin
from demo.user import User
from tests.e2e.conftest import IDLE_AFTER
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


def test_upload_comes_to_its_end_and_an_idle_session_is_suspended(
    stack: Stack, admin: Admin
) -> None:
    User.arrived(stack, "idle-bob")
    busy = User.arrived(stack, "idle-ada")  # who would be idle while another one starts
    server = busy.server()
    answer = server.api("PUT", "contents/large.txt", data=slowly())
    assert answer.status_code == 201, answer.text
    assert answer.json()["size"] == PIECES * len(PIECE)
    whats = [h["what"] for h in admin.call("GET", "sessions/idle-ada/-/history")]
    assert "suspend" not in whats
    # The other one, who did nothing, goes.
    admin.wait("idle-bob", phase="suspended")
