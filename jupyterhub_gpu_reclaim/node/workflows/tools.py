"""Tools of captures and restores, wired once by ``app``. Values and no logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.node.operations.would_not_return import Refusals

if TYPE_CHECKING:
    from pathlib import Path

    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.checkpoint.sockets.held import HeldPorts
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
    from jupyterhub_gpu_reclaim.node.operations.host_memory import HostMemory
    from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
    from jupyterhub_gpu_reclaim.node.operations.records import Records
    from jupyterhub_gpu_reclaim.node.operations.store_room import StoreRoom
    from jupyterhub_gpu_reclaim.node.setup.readiness import CheckedCriu
    from jupyterhub_gpu_reclaim.store.repository import Repository


@dataclass(frozen=True, kw_only=True)
class WorkflowTools:
    """CRIU, GPUs, memory, store and records, with their limits.

    Attributes:
        work: folder in which each operation makes one for CRIU's socket and log.
        trusted_capabilities: see the agent's setting.
        save_point_file_bytes: likewise.
    """

    records: Records
    store: Repository
    criu: CheckedCriu
    client: AsyncHTTPClient
    clock: Clock
    limits: TimeLimits
    work: Path
    accelerator: Accelerator
    memory: HostMemory
    store_room: StoreRoom
    ports: HeldPorts
    refusals: Refusals = field(default_factory=Refusals)
    trusted_capabilities: tuple[str, ...] = ()
    save_point_file_bytes: int = 256 << 20
