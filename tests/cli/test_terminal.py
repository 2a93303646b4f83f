"""On a terminal: a bar while it works."""

import os
import pty
import re
import subprocess
import sys

import pytest

PROGRAM = "import sys; from jupyterhub_gpu_reclaim.cli.main import main; "
PROGRAM += "sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def on_terminal(store):
    """Run an action on a terminal of its own; exit code and all that it has shown."""

    def on_terminal(*line):
        ours, theirs = pty.openpty()
        line = [*line, *store.settings()]
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "store", *line],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
        os.close(ours)
        return child.wait(60), shown.decode()

    return on_terminal


def test_verify_shows_a_bar_and_then_the_result(on_terminal):
    code, shown = on_terminal("verify")
    assert code == 0
    assert "ada-1 (1 of 3)" in shown
    assert re.search(r"\d+%", shown)
    assert "3 verified, 0 damaged" in shown
