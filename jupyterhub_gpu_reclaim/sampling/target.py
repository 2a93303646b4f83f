"""A running session to be sampled, as the agent finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.sampling.jupyter_api import ServerAddress


@dataclass(frozen=True, slots=True)
class SampleTarget:
    """A running session to sample; all pids are the host's."""

    incarnation: str
    key: SessionKey
    init_pid: int
    root_pid: int
    pids: list[int]
    address: ServerAddress | None
    stopped: bool = False
    pod: str = ""
    kernels: Collection[int] = ()  #: of those pids
