"""What a source of samples must be able to do.

Fulfilled by the agent's client, and by the fleet of them, which completes what they
tell by DCGM through Prometheus. Called by the orchestrator's sampling loop, which gives
what it gets to one window per session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Sample


class SampleSource(Protocol):
    """Tells what sessions do now."""

    async def samples(self) -> list[Sample]:
        """One sample of each session that it knows; ``None`` for what it cannot tell.

        Cheap, and harmless to repeat: watching a session never counts as using it.

        Raises:
            Unreachable: nothing is known of any session now.
        """
