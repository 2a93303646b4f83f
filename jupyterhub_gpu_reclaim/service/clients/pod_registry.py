"""Pod registry: which session is in which pod, and where, from the API server only.

The watch is enough to know that a pod exists; that none exists is only concluded from a
fresh list, since it decides that a session is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.models import Waiting
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.clients.pods import INCARNATION

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
    from jupyterhub_gpu_reclaim.service.clients.informer import Informer
    from jupyterhub_gpu_reclaim.service.clients.pods import Pod


class PodRegistry:
    """The pods with a session in them."""

    def __init__(self, pods: Informer) -> None:
        self._pods = pods

    async def run(self) -> None:
        await self._pods.run()

    def now(self) -> list[Pod]:
        """List all pods, as of a moment ago.

        Raises:
            ReclaimError: the pods are not known.
        """
        return self._pods.now()

    async def of(self, key: SessionKey) -> list[Pod]:
        mine = self._pods.of(key)
        if mine and all(pod.node for pod in mine):
            return mine
        return [pod for pod in await self._pods.fresh() if pod.key == key]

    async def pod_of(self, incarnation: str, *, running: bool = False) -> Pod:
        """Find the pod of an incarnation.

        Raises:
            NotFound: there is none.
        """
        for pod in self._pods.now():
            known = pod.node and (pod.image or not running)
            if pod.incarnation == incarnation and known:
                return pod
        for pod in await self._pods.fresh(f",{INCARNATION}={incarnation}"):
            if pod.incarnation == incarnation:
                return pod
        raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)

    def labels(self, key: SessionKey) -> dict[str, str] | None:
        """Labels of the session's pod; None: there is none, or it is not known."""
        try:
            pods = [pod for pod in self._pods.of(key) if not pod.over]
        except ReclaimError:
            return None
        return (pods[0].metadata.labels or {}) if len(pods) == 1 else None

    def ending(self, incarnation: str) -> Failure | None:
        """The end of an incarnation's pod; None: there is none, or it is not known."""
        for pod in self._pods.last_seen():
            if pod.incarnation == incarnation:
                return pod.end
        return None

    def waiting(self) -> list[Waiting]:
        """List sessions that no node has a GPU for, the longest first."""
        try:
            pods = self._pods.now()
        except ReclaimError:
            return []
        pods = [pod for pod in pods if pod.lacks_gpu]
        pods.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.uid))
        return [
            Waiting(
                key=pod.key,
                since=pod.created,
                gpus=pod.gpus,
                reason=pod.unscheduled or "",
            )
            for pod in pods
        ]
