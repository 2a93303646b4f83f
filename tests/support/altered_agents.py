"""Programs to start in place of the agent: the same one, with other limits."""

import os
from pathlib import Path

from jupyterhub_gpu_reclaim.node import app
from jupyterhub_gpu_reclaim.node.operations import host_memory
from jupyterhub_gpu_reclaim.node.workflows import recovery


def crowded() -> None:
    """How much memory is free ``$CROWDED_MEMINFO`` says, as /proc/meminfo does."""
    host_memory.MEMINFO = Path(os.environ["CROWDED_MEMINFO"])
    app.main()


def impatient() -> None:
    """A store that is away is waited for, and looked for again, for a second."""
    recovery._LONGEST_PAUSE = 1.0
    recovery.Recovery.recover.__kwdefaults__["patience"] = 1.0
    app.main()
