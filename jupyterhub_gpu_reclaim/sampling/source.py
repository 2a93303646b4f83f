"""The interface of a source of samples.

An agent's client is one; so is the router over all agents, which adds what DCGM reports
through Prometheus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Sample


class SampleSource(Protocol):
    """Tells what sessions do now."""

    async def samples(self) -> list[Sample]:
        """One sample of each session that it knows; ``None`` for what is unknown.

        Cheap, and harmless to repeat: watching a session never counts as using it.

        Raises:
            Unreachable: nothing is known of any session now.
        """
