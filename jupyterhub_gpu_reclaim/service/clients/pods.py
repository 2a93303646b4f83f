"""Pods and nodes as the API server describes them: the few fields that we read.

Names of fields are Kubernetes' own (JSON), so that they can be looked up.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.codec import failure_of
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: Label of a session's pod, and its annotations; ``hub/kube/pod.py`` sets them.
INCARNATION = "gpu-reclaim/incarnation"
USER = "gpu-reclaim/user"
SERVER = "gpu-reclaim/server"
SESSION = "gpu-reclaim/session"
ACCOUNT = "gpu-reclaim/account"
#: KubeSpawner's name for the container that users work in.
CONTAINER = "notebook"
#: The scheduler's word for devices that are claimed (DRA), and that no node has free.
_UNCLAIMED = "cannot allocate all claims"
#: Most characters of a message that people are shown.
_MAX_WORDS = 500


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all objects; fields that we do not know are left out."""


class Meta(_Object, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None  #: when the grace for its end is over
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    continue_: str = msgspec.field(default="", name="continue")


class Claim(_Object, frozen=True, rename="camel"):
    name: str


class Resources(_Object, frozen=True, rename="camel"):
    limits: dict[str, Any] | None = None
    claims: list[Claim] | None = None


class Container(_Object, frozen=True, rename="camel"):
    name: str
    resources: Resources | None = None


class Spec(_Object, frozen=True, rename="camel"):
    containers: list[Container] | None = None  #: none in a bookmark
    node_name: str | None = None


class ContainerStatus(_Object, frozen=True, rename="camel"):
    name: str
    image_id: str = msgspec.field(default="", name="imageID")
    ready: bool = False
    state: dict[str, Any] | None = None


class Condition(_Object, frozen=True, rename="camel"):
    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatus(_Object, frozen=True, rename="camel"):
    phase: str = ""
    reason: str | None = None  #: reason of the pod's own end: "Evicted"
    message: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Object, frozen=True, rename="camel"):
    metadata: Meta
    spec: Spec = Spec()
    status: PodStatus = PodStatus()
    deleted_alive: bool = False  #: whether we saw it run when it was deleted first

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def node(self) -> str:
        """The node where it runs; empty: nowhere yet."""
        return self.spec.node_name or ""

    @property
    def incarnation(self) -> str:
        return (self.metadata.labels or {}).get(INCARNATION, "")

    @property
    def key(self) -> SessionKey:
        return SessionKey(self._annotation(USER), self._annotation(SERVER))

    @property
    def session(self) -> str:
        """The id of that session; empty: not known."""
        return self._annotation(SESSION)

    @property
    def account(self) -> str:
        """The session's account at the Hub; empty: likewise."""
        return self._annotation(ACCOUNT)

    def _annotation(self, name: str) -> str:
        return (self.metadata.annotations or {}).get(name, "")

    @property
    def ready(self) -> bool:
        conditions = self.status.conditions or ()
        return any(c.type == "Ready" and c.status == "True" for c in conditions)

    @property
    def ending(self) -> bool:
        """Whether the pod is being deleted; its kubelet ends it, once that is there."""
        return self.metadata.deletion_timestamp is not None

    def after(self, former: Pod | None) -> Pod:
        """The pod with what its first deletion found, if ``former`` is what it was.

        When its containers are dead its kubelet deletes it once more, at once, and the
        API server puts the time of that in the place of the first one.
        """
        alive = self.ending and not self.over
        if former is not None and former.ending:
            alive = former.deleted_alive
        return msgspec.structs.replace(self, deleted_alive=alive)

    @property
    def over(self) -> bool:
        """Whether the session's container is dead, as reported by the kubelet."""
        if self.status.phase in {"Succeeded", "Failed"}:
            return True
        status = self._session_status()
        return status is not None and "terminated" in (status.state or {})

    @property
    def end(self) -> Failure | None:
        """The pod's end, past or under way; None: neither.

        A drain, an eviction and a preemption are told in a condition of the pod. A
        container that is ended because of that has a status, too, which tells less.
        """
        ended, why = self._terminated(), self._disruption()
        if ended.get("reason") == "OOMKilled":
            error = Refused(Reason.SESSION_OUT_OF_MEMORY)
        elif why:
            node = self.node or "its node"
            error = Refused(Reason.SESSION_DISRUPTED, node=node, why=why)
        elif ended:
            error = endings.by_status(_code(ended))
        else:
            return None
        at = _seconds(ended.get("finishedAt"))
        return msgspec.structs.replace(failure_of(error), at=at)

    def _disruption(self) -> str:
        """Say who ended the pod and why; empty: not known."""
        parts: list[str | None] = []
        for condition in self.status.conditions or ():
            if condition.type == "DisruptionTarget" and condition.status == "True":
                parts = [condition.reason, condition.message]
        parts = parts or [self.status.reason, self.status.message]
        words = ": ".join(filter(None, parts)).rstrip(".")
        # The Hub deletes what has ended by itself.
        deleted = self.deleted_alive if self._terminated() else self.ending
        return words[:_MAX_WORDS] or ("it was deleted" if deleted else "")

    @property
    def image(self) -> str:
        """The image that its container runs, by digest; empty: not known yet."""
        status = self._session_status()
        return (
            "" if status is None else status.image_id.removeprefix("docker-pullable://")
        )

    @property
    def wants_gpu(self) -> bool:
        """Whether the pod asks for a GPU of any make."""
        return self.gpus > 0

    @property
    def gpus(self) -> int:
        """The number of GPUs, or parts (MIG) of them, that it asks for.

        Each resource claim (DRA) counts as one: its pod does not say what is claimed.
        """
        asked = [
            container.resources or Resources()
            for container in self.spec.containers or ()
        ]
        limits = [item for each in asked for item in (each.limits or {}).items()]
        claims = {claim.name for each in asked for claim in each.claims or ()}
        return len(claims) + sum(
            _count(number) for name, number in limits if _is_gpu(name)
        )

    @property
    def unscheduled(self) -> str | None:
        """The scheduler's reason why no node takes it; None: one does, or may."""
        for condition in self.status.conditions or ():
            if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                return condition.message or "no node takes it"
        return None

    @property
    def lacks_gpu(self) -> bool:
        """Whether a freed GPU may help it.

        The scheduler's message names what is short: "0/3 nodes are available: 2
        Insufficient nvidia.com/gpu, …". Without a message, it may be that.
        """
        why = self.unscheduled
        if why is None or not self.wants_gpu:
            return False
        return "Insufficient" not in why or _is_gpu(why) or _UNCLAIMED in why

    @property
    def created(self) -> float:
        """The time of creation in seconds since the epoch; 0 if not given."""
        return _seconds(self.metadata.creation_timestamp)

    def _terminated(self) -> dict[str, Any]:
        """The end of its container; empty: it has not ended, or that is not known."""
        status = self._session_status()
        return ((status and status.state) or {}).get("terminated") or {}

    def _session_status(self) -> ContainerStatus | None:
        statuses = self.status.container_statuses or ()
        return next((each for each in statuses if each.name == CONTAINER), None)


def _is_gpu(words: str) -> bool:
    return "/gpu" in words or "/mig-" in words


def _seconds(stamp: str | None) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
    except ValueError:
        return 0.0


def _code(terminated: dict[str, Any]) -> int:
    code = terminated.get("exitCode")
    return code if isinstance(code, int) else 0


def _count(number: object) -> int:
    """A number of devices: Kubernetes writes it as a number or as digits."""
    try:
        return max(0, int(str(number)))
    except ValueError:
        return 1


class Pods(_Object, frozen=True, rename="camel"):
    metadata: Meta = Meta()
    items: list[Pod] | None = None


class Taint(_Object, frozen=True, rename="camel"):
    """A taint: it keeps pods from a node."""

    key: str = ""


class NodeSpec(_Object, frozen=True, rename="camel"):
    unschedulable: bool = False  #: cordoned
    taints: list[Taint] | None = None


class NodeState(_Object, frozen=True, rename="camel"):
    conditions: list[Condition] | None = None


class ClusterNode(_Object, frozen=True, rename="camel"):
    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeState = NodeState()


class WatchEvent(_Object, frozen=True, rename="camel"):
    type: str  #: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR
    object: msgspec.Raw  #: a pod, or (ERROR) a refusal


class Refusal(_Object, frozen=True, rename="camel"):
    code: int = 0
    message: str = ""
