"""JupyterHub's own tests, with our local spawner in place of its own.

A plugin of pytest, for tests that come with JupyterHub: each spawner of theirs is made
from ``SimpleLocalProcessSpawner``, which is ours before they import it. What
passes, and the command: ``docs/reference/jupyterhub-traps.md``.
"""

from __future__ import annotations

import jupyterhub.spawner

from jupyterhub_gpu_reclaim.hub.local.spawner import SimpleReclaimLocalSpawner

jupyterhub.spawner.SimpleLocalProcessSpawner = SimpleReclaimLocalSpawner
