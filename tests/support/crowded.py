"""An agent on a crowded machine: how much memory is free, a file says.

Run as a program in place of the agent. ``$CROWDED_MEMINFO`` names the file, which has
the lines of /proc/meminfo.
"""

import os
from pathlib import Path

from jupyterhub_gpu_reclaim.node.app import main
from jupyterhub_gpu_reclaim.node.operations import host_memory

host_memory.MEMINFO = Path(os.environ["CROWDED_MEMINFO"])
main()
