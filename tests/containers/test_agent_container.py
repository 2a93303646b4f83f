"""What needs a first process that everybody may look at: a pid namespace of its own.

An agent in a container, as in a DaemonSet, sees all processes, and of the rest only
what is its own. What it needs of the host it has to find through the first process.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.ran import ran


def test_agent_in_a_container_of_runc():
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc: apt-get install runc")
    done = ran(
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"),
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            str(Path(__file__).with_name("agent_in_runc.py")),
        ]
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "1 passed" in done.stdout
