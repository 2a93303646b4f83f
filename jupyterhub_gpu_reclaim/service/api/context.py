"""The dependencies of routes and pages.

One value per program, in the tornado settings.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from jinja2 import Environment
    from prometheus_client import CollectorRegistry

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth
    from jupyterhub_gpu_reclaim.controlplane.controller import Controller


class TooMany(Unreachable):
    status = 429


@dataclass
class Streams:
    per_person: int = 16
    total: int = 1000
    _open: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def opened(self, name: str) -> Iterator[None]:
        """Count one more stream while the block lasts.

        Raises:
            TooMany: for that person, or for all together.
        """
        if self._open[name] >= self.per_person or self._open.total() >= self.total:
            raise TooMany(Reason.TOO_MANY_STREAMS)
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


@dataclass(frozen=True)
class Context:
    """The dependencies that handlers find in ``settings["context"]``."""

    control: Controller
    clock: Clock
    registry: CollectorRegistry
    templates: Environment
    spawner_token: bytes
    prefix: str  #: path of the service, with slashes at both ends
    hub_prefix: str  #: path of the Hub's own pages, likewise
    #: Time at which the Hub made a user: older things are a former user's of that name.
    created: Callable[[str], Awaitable[float]]
    nodes: Callable[[], list[NodeHealth]]  #: the status of every node
    #: Problems in the Hub's configuration that defeat us, in sentences.
    warnings: Callable[[], Sequence[str]] = tuple
    announcement: str = ""  #: of the Hub, as HTML
    hub_host: str = ""  #: the Hub's host if it is another (subdomains)
    metrics_open: bool = False
    trust_plain_http: bool = False  #: cookies count though no browser says for what
    heartbeat: float = 15.0  #: seconds
    stream: float = 900.0  #: seconds; its reader logs in again then
    stalled: float = 30.0  #: seconds; a reader that takes nothing is dropped then
    streams: Streams = field(default_factory=Streams)  #: streams of events
    #: Limit for each person's changes of each session; all of them are journalled.
    changes: Throttle = field(default_factory=lambda: Throttle(30, per_minute=10))
