"""An agent on a crowded machine: how much memory is free, a file says.

Started in place of the agent. ``$CROWDED_MEMINFO`` names the file, which has
the lines of /proc/meminfo.
"""

import os
from pathlib import Path

from jupyterhub_gpu_reclaim.node import app
from jupyterhub_gpu_reclaim.node.operations import host_memory


def main() -> None:
    """Run the agent; returns when it has ended."""
    host_memory.MEMINFO = Path(os.environ["CROWDED_MEMINFO"])
    app.main()
