"""Finds the sessions in a node's pods, and lets no pod pose as another.

The placement ``kubernetes`` (``placements.Placements``). A session's init runs there as
the pod's user, possibly behind the image's own entry point, and the user may write
anything into its command line, which is therefore only a claim. The kernel tells in
which pod a process lives (``linux.containers``), the service tells which pod belongs to
which incarnation (:meth:`PodPlacements.tell`), and an order is carried out only where
all three agree. If several processes in a pod claim the same, the oldest is the init:
it was there before its user's first program. It only reads ``/proc``.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import containers, process_environment, procfs
from jupyterhub_gpu_reclaim.linux.processes import INIT_NAME
from jupyterhub_gpu_reclaim.node.sessions.placements import Session, Told, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: A first program that is younger may still become a session's init: a container is
#: said to run when its runtime has not even started it. Seconds.
_PATIENCE = 10.0
_PAUSE = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")
#: Incarnations whose pod is remembered; a node has some hundred pods.
_REMEMBERED = 4096


class PodPlacements:
    """Sessions in the containers of this node's pods.

    Args:
        realm: only sessions of this realm are ours.
        proc: where processes are found; it must be that of the host (``hostPID``).
        patience: seconds that a pod's first program has to become an init.
    """

    def __init__(
        self,
        realm: str = "",
        proc: Path = Path("/proc"),
        *,
        patience: float = _PATIENCE,
    ) -> None:
        self._realm = realm
        self._proc = proc
        self._patience = patience
        self._lock = threading.Lock()
        self._told: dict[str, Told] = {}

    def tell(self, incarnation: str, told: Told) -> None:
        """Remember which pod an incarnation lives in; what is not said again stays.

        Raises:
            NotFound: no pod was named (``unknown_session``).
        """
        if not told.pod:
            raise _unknown(incarnation, "no pod was named")
        with self._lock:
            before = self._told.pop(incarnation, None)
            if before is not None and before.pod == told.pod:
                said = {
                    field: value
                    for field in ("key", "image", "node_labels")
                    if (value := getattr(told, field))
                }
                told = msgspec.structs.replace(before, **said)
            self._told[incarnation] = told
            while len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]

    def list(self) -> list[Session]:
        """Every claim on this node; one of an incarnation once its pod is known."""
        return sorted(
            (one for one in _oldest(self._claims()) if self._may_be(one)),
            key=lambda one: (one.incarnation, one.init_start),
        )

    def find(self, incarnation: str, pod: str = "") -> Session:
        """That incarnation's session, in that pod or the one that the service named.

        Raises:
            NotFound: it is not there, or names another session
                (``unknown_session``).
        """
        with self._lock:
            told = self._told.get(incarnation, Told())
        if not pod or pod == told.pod:
            pod = told.pod
        else:
            told = Told(pod=pod)
        if not pod:
            raise _unknown(incarnation, "its pod was not told")
        deadline = time.monotonic() + self._patience
        while True:
            for session in _oldest(self._claims(pod)):
                if session.incarnation != incarnation:
                    continue
                if told.key not in {None, session.key}:
                    raise _unknown(incarnation, f"it claims to be {session.key}")
                return replace(session, told=told)
            if time.monotonic() > deadline or not self._is_young(pod):
                raise _unknown(incarnation, f"not in pod {pod}")
            time.sleep(_PAUSE)  # nothing tells when a process has set its name

    def _may_be(self, claim: Session) -> bool:
        with self._lock:
            told = self._told.get(claim.incarnation)
        return told is None or told.pod == claim.told.pod

    def _claims(self, pod: str = "") -> Iterator[Session]:
        """Every process that claims to be the init of a session of ours."""
        for pid in procfs.pids(self._proc):
            # Of most processes no more than this has to be read.
            if self._name(pid) != INIT_NAME:
                continue
            found = self._look(pid, pod)
            if found is None:
                continue
            start, container = found
            # The command line last: it is memory of the process, and its user can
            # keep its reader waiting.
            try:
                words = process_environment.words(pid, "cmdline", proc=self._proc)
            except OSError:
                continue
            if not any(b"session_init" in word for word in words[:6]):
                continue
            session = parse(words, pid, start, self._realm)
            if session is not None and self._look(pid, pod) == found:
                yield replace(
                    session, container=container.id, told=Told(pod=container.pod)
                )

    def _look(self, pid: int, pod: str) -> tuple[int, containers.Container] | None:
        """When a process of (that) pod was started, and its container.

        None for one of a nested pid namespace: a user who may make these could give a
        program any environment there.
        """
        entry = self._proc / str(pid)
        try:
            stat = (entry / "stat").read_text(errors="replace")
            container = containers.parse((entry / "cgroup").read_text())
        except OSError:  # it has ended while we looked
            return None
        fields = stat.rpartition(")")[2].split()
        if container is None or pod not in {"", container.pod} or fields[0] in "ZX":
            return None
        depth = len(_field(self._proc / "self", "NSpid")) + 1
        if len(_field(entry, "NSpid")) != depth:
            return None
        return int(fields[19]), container

    def _is_young(self, pod: str) -> bool:
        """Whether a first program of that pod may be about to become an init."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return any(
            _field(self._proc / str(pid), "NSpid")[-1:] == ["1"]
            and (found := self._look(pid, pod)) is not None
            and now - found[0] / _TICKS < self._patience
            for pid in procfs.pids(self._proc)
        )

    def _name(self, pid: int) -> str:
        try:
            name = procfs.read(pid, "comm", self._proc)
        except OSError:
            return ""
        return name.decode(errors="replace").strip()


def _oldest(claims: Iterable[Session]) -> Iterable[Session]:
    """The oldest of those in one pod that claim the same."""
    found: dict[tuple[str, str], Session] = {}
    for one in claims:
        first = found.setdefault((one.incarnation, one.told.pod), one)
        if one.init_start < first.init_start:
            found[one.incarnation, one.told.pod] = one
    return found.values()


def _field(entry: Path, name: str) -> list[str]:
    """The words of a line of /proc/<pid>/status; none when it is gone."""
    try:
        text = (entry / "status").read_text(errors="replace")
    except OSError:
        return []
    _, found, rest = text.partition(f"\n{name}:")
    return rest.partition("\n")[0].split() if found else []


def _unknown(incarnation: str, detail: str) -> NotFound:
    return NotFound(Reason.UNKNOWN_SESSION, session=incarnation, detail=detail)
