"""What needs a first process that everybody may look at: a pid namespace of its own.

An agent in a container, as in a DaemonSet, sees all processes, and of the rest only
what is its own. What it needs of the host it has to find through the first process.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.containerd import CONFINED


@pytest.mark.parametrize(
    ("inside", "runtime"),
    [("session_in_containerd", "containerd"), ("agent_in_runc", "runc")],
)
def test_agent_in_a_container_of(inside, runtime):
    if os.geteuid() != 0 or shutil.which(runtime) is None:
        pytest.skip(f"needs root and {runtime}: apt-get install containerd runc")
    done = subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"),
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            str(Path(__file__).with_name(f"{inside}.py")),
        ],
        env=os.environ | {CONFINED: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "1 passed" in done.stdout
