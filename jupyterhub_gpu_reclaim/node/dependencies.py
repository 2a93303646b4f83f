"""The dependencies of the agent's operations, wired once by ``app``.

Values and references only; no logic.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.checkpoint.sockets.ports import Reservations
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
    from jupyterhub_gpu_reclaim.node.operations.records import Records
    from jupyterhub_gpu_reclaim.node.sessions.placements import Placements
    from jupyterhub_gpu_reclaim.node.setup.criu import Tool
    from jupyterhub_gpu_reclaim.store.repository import Repository


@dataclass(frozen=True, slots=True)
class Limits:
    """How many seconds each step may take."""

    check: float = 60.0  #: looking at processes, files and sockets
    dump: float = 1800.0
    archive: float = 600.0
    commit: float = 600.0
    restore: float = 1800.0
    answer: float = 60.0  #: until a restored server answers
    end: float = 30.0  #: until killed processes are gone
    criu: float = 60.0  #: until a CRIU of an agent that died has undone its work
    gpu_lock: float = 30.0  #: until a GPU has done what it has in hand


@dataclass(frozen=True, slots=True)
class Parts:
    """What the operations need of placements, CRIU, GPU driver and store."""

    placements: Placements
    records: Records
    store: Repository
    tool: Tool
    ports: Reservations
    client: AsyncHTTPClient
    clock: Clock
    limits: Limits
    work: Path
    accelerator: Accelerator
    memory: HostMemory
    trusted_capabilities: tuple[str, ...] = ()

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A folder of ours, 0700, for CRIU's socket and log; removed with all in it."""
        with tempfile.TemporaryDirectory(dir=self.work, prefix="") as folder:
            yield Path(folder)
