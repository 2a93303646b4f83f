"""Saves any process tree, ends it, and brings it back: the engine, without a Hub.

What sessions of JupyterHub are saved with, for other programs: batch systems, training
operators, test benches. ``docs/explanation/engine.md`` has an example and the limits.
All calls block and need root; each failure is a ``ReclaimError`` with a reason.

``tree`` starts, holds and ends trees, ``cycle`` saves them and brings them back,
``images`` reads CRIU's images out of a store. The work itself is done by ``checkpoint``
and ``store``, which know nothing of each other.
"""

from jupyterhub_gpu_reclaim.common.errors import (
    ReclaimError,
    Refused,
    RestoreFailed,
    RolledBack,
    StoreError,
)
from jupyterhub_gpu_reclaim.engine.cycle import (
    capture,
    findings,
    open_store,
    restore,
    thaw,
)
from jupyterhub_gpu_reclaim.engine.tree import Tree, end, start

__all__ = [
    "ReclaimError",
    "Refused",
    "RestoreFailed",
    "RolledBack",
    "StoreError",
    "Tree",
    "capture",
    "end",
    "findings",
    "open_store",
    "restore",
    "start",
    "thaw",
]
