"""Shared dependencies of the planners that answer the spawner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.flows.resume import Resumer
    from jupyterhub_gpu_reclaim.controlplane.flows.suspend import Suspender
    from jupyterhub_gpu_reclaim.controlplane.model.interfaces import Agent
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions


@dataclass(frozen=True, kw_only=True)
class Parts:
    """References only; ``look`` adds a session's key to the work queue."""

    sessions: Sessions
    agent: Agent
    suspender: Suspender
    resumer: Resumer
    look: Callable[[SessionKey], None]
    settings: Settings


class Spawning:
    """Base of the planners."""

    def __init__(self, parts: Parts) -> None:
        self._sessions = parts.sessions
        self._agent = parts.agent
        self._suspender = parts.suspender
        self._resumer = parts.resumer
        self._look = parts.look
        self._settings = parts.settings
