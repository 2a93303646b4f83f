"""Who is at work is not suspended, and who is not is: a real Hub with a policy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from demo.admin import Admin
from demo.user import User
from tests.support import light_server
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(180)

#: Much shorter than the upload, and longer than two samples are apart.
IDLE_AFTER = 5
PIECES, PIECE = 24, b"x" * 100_000


def slowly() -> Iterator[bytes]:
    """A file of 2.4 MB, as the page sends it, in some twelve seconds."""
    yield b'{"type": "file", "format": "text", "content": "'
    for _ in range(PIECES):
        yield PIECE
        time.sleep(0.5)
    yield b'"}'


def test_upload_comes_to_its_end_and_an_idle_session_is_suspended(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("s")  # short: sockets stand in it
    settings = {
        "idle_after": IDLE_AFTER,
        "sample_interval": 1,
        "warn_for": 0,
        "server": light_server.COMMAND,
        "service_options": {"ReclaimService.tick_interval": 1},
    }
    with Stack(folder, **settings) as stack:
        admin = Admin(stack)
        busy, idle = (User(stack.url, name, stack.password) for name in ("ada", "bob"))
        for user in (busy, idle):
            user.login()
            user.start_server()
        server = busy.server()
        answer = server.api("PUT", "contents/large.txt", data=slowly())
        assert answer.status_code == 201, answer.text
        assert answer.json()["size"] == PIECES * len(PIECE)
        whats = [h["what"] for h in admin.call("GET", "sessions/ada/-/history")]
        assert "suspend" not in whats
        # The other one, who did nothing, has gone meanwhile.
        assert admin.session("bob")["phase"] == "suspended"
