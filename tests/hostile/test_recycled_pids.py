"""A pid that LocalProcessSpawner has noted, and that another process has by now.

What is taken for a former server is signalled by root when its user presses Stop. So
nobody may get another user's process, or one of root, behind a pid in their state.
"""

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.hub.local.processes import find_former
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from tests.support.hub import wait_until

NOBODY = 65534


def now() -> datetime:
    """As the Hub's database has it."""
    return datetime.now(UTC).replace(tzinfo=None)


@pytest.fixture
def server():
    """A process that leads a session, as LocalProcessSpawner's do."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_former_server_is_known_by_its_pid(server):
    found = find_former(server.pid, os.getuid(), now())
    assert (found.pid, found.start > 0, bool(found.boot)) == (server.pid, True, True)
    assert find_former(server.pid, os.getuid(), None) == found


def test_process_of_another_user_is_no_server(server):
    assert find_former(server.pid, NOBODY, now()) == Location()
    assert find_former(1, NOBODY, None) == Location()


@pytest.mark.parametrize("before", [timedelta(days=2), timedelta(hours=1)])
def test_process_that_began_long_after_the_server_is_none(server, before):
    assert find_former(server.pid, os.getuid(), now() - before) == Location()


def test_process_inside_somebodys_session_is_no_server():
    with subprocess.Popen(["sleep", "600"]) as process:
        assert find_former(process.pid, os.getuid(), now()) == Location()
        process.kill()


def test_ended_process_is_no_server(server):
    server.kill()
    server.wait()
    assert find_former(server.pid, os.getuid(), now()) == Location()


@pytest.mark.root
def test_session_of_ours_is_no_server_of_the_former_spawner():
    command = ["unshare", "--pid", "--fork", "--kill-child", "sleep", "600"]
    with subprocess.Popen(command, start_new_session=True) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        inner = wait_until(children.read_text, 60).split()
        assert find_former(int(inner[0]), os.getuid(), now()) == Location()
        outer.kill()
