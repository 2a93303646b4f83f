"""The session of ``session_in_containerd``, with an agent that is confined itself.

As in a DaemonSet: it sees all processes, and of the rest only what is its own. What it
needs of the host it has to find through the first process; so the test has a pid
namespace of its own, whose first process everybody may look at.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.containerd import CONFINED


def test_session_moves_between_containers_beside_an_agent_in_a_container():
    if os.geteuid() != 0 or shutil.which("containerd") is None:
        pytest.skip("needs root and containerd: apt-get install containerd runc")
    inside = Path(__file__).with_name("session_in_containerd.py")
    done = subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"),
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            str(inside),
        ],
        env=os.environ | {CONFINED: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "1 passed" in done.stdout
