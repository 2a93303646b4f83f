"""Changes the pod of a session so that it can be captured and restored.

Pure: the given pod stays as it is. It uses only attributes of its objects, so any
Kubernetes client will do.

*Start*: the session's init runs before the server's command, behind the image's own
ENTRYPOINT (tini, start.sh), which stays. *Hold*: the init alone, as pid 1, so that the
restored tree becomes its child; the image by digest, and a node of the same kind. The
init comes as text in a variable of the pod: images need only ``python3`` in their PATH.
A pod whose image has none does not start, and says so.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner.placement import TOKENS, Purpose
from jupyterhub_gpu_reclaim.service.clients.pods import (
    ACCOUNT,
    CONTAINER,
    INCARNATION,
    SERVER,
    SESSION,
    USER,
)
from jupyterhub_gpu_reclaim.session_init import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import Identity

#: Volumes that end with the pod, or are made for it from what the cluster has today.
_PASSING = {"emptydir", "ephemeral", "configmap", "secret", "projected", "downwardapi"}
#: Taints of a node that is cut off. A pod that does not say how long it stays there is
#: deleted after 300 s (the admission plugin ``DefaultTolerationSeconds``).
_CUT_OFF = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
#: Runtime classes of gVisor and Kata, as GKE, AKS, OpenShift and their own manuals name
#: them. The name is all that a pod tells.
_SANDBOX = re.compile(r"gvisor|runsc|kata(-.+)?")


def prepared(pod: Any, purpose: Purpose, avoid: tuple[str, ...] = ()) -> Any:
    """The pod (a ``V1Pod``, which is not changed) with the session's init in it.

    ``avoid``: nodes that just rejected it; others are preferred.

    Raises:
        Refused: a session in such a pod could not be suspended; the sentence says why.
    """
    pod = copy.copy(pod)
    pod.metadata, pod.spec = copy.copy(pod.metadata), copy.copy(pod.spec)
    if pod.spec.share_process_namespace:
        raise _refused("shareProcessNamespace leaves it no process number 1 of its own")
    if _SANDBOX.fullmatch(runtime := pod.spec.runtime_class_name or ""):
        raise _refused(
            f"its runtime class {runtime} hides its processes from the node's kernel"
        )
    at = _position(pod)
    container = copy.copy(pod.spec.containers[at])
    pod.spec.containers = [*pod.spec.containers]
    pod.spec.containers[at] = container
    ours = command_line.inline_environment()
    others = [each for each in container.env or () if _name(each) not in ours]
    form = type(others[0]) if others else dict
    added = [form(name=name, value=_escape(text)) for name, text in ours.items()]
    container.env = [*others, *added]
    _label(pod.metadata, purpose)
    # A container that was ended on purpose must not come up again by itself.
    pod.spec.restart_policy = "Never"
    # A stopped tree answers no probe, and the kubelet would kill it for that.
    container.liveness_probe = None
    pod.spec.tolerations = _staying(pod.spec.tolerations)
    if saved := purpose.saved:
        _run_init_alone(container, purpose, saved)
        pod.spec.node_selector = _selector(pod.spec.node_selector, saved.node_labels)
        if avoid:
            pod.spec.affinity = _prefer_other_nodes(pod.spec.affinity, avoid)
    else:
        _run_init_first(container, purpose)
    return pod


def holds(pod: Any, purpose: Purpose) -> bool:
    """Whether the pod would still serve its purpose, after all hooks.

    Raises:
        Refused: nothing would run in it: the init is called, but its text is gone.
    """
    container = pod.spec.containers[_position(pod)]
    words = [*(container.command or ()), *(container.args or ())]
    prefix = _prefix(purpose)
    if (pod.metadata.labels or {}).get(INCARNATION) != purpose.init.incarnation:
        return False
    if purpose.saved:
        asked = bool(container.command) and words == prefix
    else:
        asked = any(words[at : at + len(prefix)] == prefix for at in range(len(words)))
    lost = command_line.INLINE_VARIABLE not in map(_name, container.env or ())
    if asked and lost:
        raise _refused(
            f"a hook has removed the variable {command_line.INLINE_VARIABLE} from it"
        )
    return asked


def variables(pod: Any) -> dict[str, Any]:
    """The variables of the session's container that have a value in the pod itself."""
    container = _plain(pod.spec.containers[_position(pod)])
    return {each["name"]: each.get("value") for each in container.get("env") or ()}


def mounts(pod: Any) -> Iterator[tuple[str, Any]]:
    """Where volumes that outlive the pod are mounted in it, each with which and how."""
    container = _plain(pod.spec.containers[_position(pod)])
    volumes = {each["name"]: each for each in map(_plain, pod.spec.volumes or ())}
    for mount in container.get("volumemounts") or ():
        volume = {**volumes.get(mount["name"], {})}
        volume.pop("name", None)
        if volume.keys() - _PASSING:
            how = {name: mount.get(name) for name in ("subpath", "readonly")}
            yield mount["mountpath"], [volume, how]


def _plain(thing: Any) -> Any:
    """An object of the client, or JSON, alike: lower-case names, nothing empty."""
    thing = thing.to_dict() if hasattr(thing, "to_dict") else thing
    if isinstance(thing, dict):
        names = {name.replace("_", "").lower(): v for name, v in thing.items()}
        return {name: _plain(v) for name, v in names.items() if v not in (None, False)}
    return [_plain(each) for each in thing] if isinstance(thing, list) else thing


def _position(pod: Any) -> int:
    for at, container in enumerate(pod.spec.containers):
        if container.name == CONTAINER:
            return at
    raise _refused(f"it has no container named {CONTAINER!r}")


def _label(metadata: Any, purpose: Purpose) -> None:
    # Annotations hold names, which labels cannot.
    metadata.labels = {
        **(metadata.labels or {}),
        INCARNATION: purpose.init.incarnation,
    }
    metadata.annotations = {
        **(metadata.annotations or {}),
        USER: purpose.init.user,
        SERVER: purpose.init.server,
        SESSION: purpose.init.session,
        ACCOUNT: purpose.init.account,
    }


def _run_init_first(container: Any, purpose: Purpose) -> None:
    prefix = [*_prefix(purpose), "--"]
    if container.command:
        container.command = [*prefix, *container.command]
    elif container.args:
        container.args = [*prefix, *container.args]
    else:
        raise _refused(
            "the command of its image is not known here; set c.KubeSpawner.cmd, for"
            " example to 'jupyterhub-singleuser'"
        )


def _run_init_alone(container: Any, purpose: Purpose, saved: Identity) -> None:
    """Leave nothing but the init, and no probe that waits for a server to answer."""
    container.command, container.args = _prefix(purpose), None
    container.readiness_probe = container.startup_probe = None
    # What runs after a start ran when the session was started.
    container.lifecycle = _copy_with(
        container.lifecycle, post_start=None, postStart=None
    )
    if "@sha256:" in saved.image:
        container.image = saved.image
        container.image_pull_policy = "IfNotPresent"
    token = _escape(saved.api_token)
    container.env = [
        _copy_with(each, value=token, value_from=None, valueFrom=None)
        if _name(each) in TOKENS
        else each
        for each in container.env or ()
    ]


def saved_image(saved: str, named: str) -> str:
    """The image to request: the saved one, by digest, from where it was named.

    The kubelet may know the same bytes by another repository's name, for which there
    is no pull secret, or which an admission policy forbids. The name is that of the
    session's profile at its fresh start; what the kubelet named is useless without a
    digest.
    """
    digest = saved.partition("@")[2]
    if not digest or not named:
        return saved
    place, slash, last = named.partition("@")[0].rpartition("/")
    return f"{place}{slash}{last.partition(':')[0]}@{digest}"


def other_image(chosen: str, named: str) -> str:
    """A sentence if the profile names another image than at the fresh start."""
    if not named or chosen == named:
        return ""
    return (
        f"It comes back in the image that it was saved in, {named}, and not in"
        f" {chosen}, which its profile names now. A fresh start uses that."
    )


def _name(variable: Any) -> str:
    return str(_value(variable, "name"))


def _value(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name)


def _copy_with(thing: Any, **changes: Any) -> Any:
    """Copy an object with other values; None removes one.

    KubeSpawner leaves what an administrator has written as it is: an object of the
    client, or plain JSON with the names of Kubernetes.
    """
    if not thing:
        return thing
    if isinstance(thing, dict):
        rest = {name: v for name, v in thing.items() if name not in changes}
        new = {name: v for name, v in changes.items() if v is not None}
        return {**rest, **new}
    thing = copy.copy(thing)
    for name, value in changes.items():
        if hasattr(thing, name):
            setattr(thing, name, value)
    return thing


def _selector(given: Any, labels: dict[str, str]) -> dict[str, str] | None:
    """Join the administrator's selector and the suspended session's, if they agree.

    Raises:
        Refused: the session needs another kind of node than its profile asks for.
    """
    selector = dict(given or {})
    for name, value in labels.items():
        if selector.setdefault(name, value) != value:
            raise Refused(
                Reason.NODE_MISMATCH, wanted=value, given=selector[name], label=name
            )
    return selector or None


def _prefer_other_nodes(affinity: Any, avoid: tuple[str, ...]) -> Any:
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]}
        for name in avoid
    ]
    term = {"weight": 100, "preference": {"matchFields": fields}}
    ours = "preferredDuringSchedulingIgnoredDuringExecution"
    if affinity is None or isinstance(affinity, dict):
        nodes = (affinity or {}).get("nodeAffinity") or {}
        nodes = {**nodes, ours: [*(nodes.get(ours) or ()), term]}
        return {**(affinity or {}), "nodeAffinity": nodes}
    affinity, nodes = copy.copy(affinity), copy.copy(affinity.node_affinity)
    if nodes is None:
        nodes = {ours: [term]}
    else:
        given = nodes.preferred_during_scheduling_ignored_during_execution
        nodes.preferred_during_scheduling_ignored_during_execution = [
            *(given or ()),
            term,
        ]
    affinity.node_affinity = nodes
    return affinity


def _staying(given: Any) -> list[Any]:
    """The tolerations with those of a node that is cut off, unless they are given."""
    effect = "NoExecute"
    tolerated = {
        _value(each, "key") or ""
        for each in given or ()
        if (_value(each, "effect") or effect) == effect
    }
    added = [
        {"key": key, "operator": "Exists", "effect": effect}
        for key in _CUT_OFF
        if not tolerated & {key, ""}
    ]
    return [*(given or ()), *added]


def _prefix(purpose: Purpose) -> list[str]:
    return [_escape(word) for word in purpose.command]


def _escape(word: str) -> str:
    # Kubernetes would replace ``$(NAME)`` in it.
    return word.replace("$", "$$")


def _refused(why: str) -> Refused:
    return Refused(Reason.PLACE_UNSUITABLE, place="pod", why=why)
