"""Finds the sessions on this node: nothing is registered, so nothing is lost.

:class:`LocalPlacements` believes only what a user cannot forge: a process of root that
is pid 1 of a pid namespace of its own and runs our ``session_init``.

:class:`PodPlacements` lets no pod pose as another. There an init runs as the pod's
user, possibly behind the image's own entry point, and its command line is only a claim.
The kernel tells in which pod a process lives (``linux.cgroups``), the service which pod
belongs to which incarnation, and an order is carried out only where all three agree. Of
several processes with one claim the oldest is the init: it precedes the user's
programs.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.bounds import IDENTIFIER
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import cgroups, processes, procfs
from jupyterhub_gpu_reclaim.node.session import Session
from jupyterhub_gpu_reclaim.session_init import command_line, session_init

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

#: A line of /proc/<pid>/status: all four uids are root's.
_OF_ROOT = re.compile(rb"^Uid:\t0\t0\t0\t0$", re.MULTILINE)
#: A first program that is younger may still become a session's init: a container is
#: said to run when its runtime has not even started it. Seconds.
PATIENCE = 10.0
_PAUSE = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")
#: Incarnations whose pod is remembered; a node has some hundred pods.
_REMEMBERED = 4096


class LocalPlacements:
    """Sessions that run in namespaces on this machine, beside the Hub."""

    # Only this realm's: two Hubs on one machine (or two tests) have an agent each.

    def __init__(self, realm: str = "") -> None:
        self._realm = realm
        #: Incarnation → where its init was; replaced whole, so threads do no harm.
        self._pids: dict[str, int] = {}

    def list(self) -> list[Session]:
        found: dict[str, Session] = {}
        for pid in procfs.pids():
            session = self._session(pid)
            if session is not None:
                found.setdefault(session.incarnation, session)
        self._pids = {name: session.init_pid for name, session in found.items()}
        return sorted(found.values(), key=lambda session: session.incarnation)

    def find(self, incarnation: str, pod: str = "") -> Session:
        del pod
        # Most often it is where it was.
        pid = self._pids.get(incarnation)
        there = None if pid is None else self._session(pid)
        if there is not None and there.incarnation == incarnation:
            return there
        for session in self.list():
            if session.incarnation == incarnation:
                return session
        raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)

    def set_hint(self, incarnation: str, hint: PodHint) -> None:
        """Take nothing: an init of root can be trusted on its session."""

    def _session(self, pid: int) -> Session | None:
        try:
            # The command line last: it is memory of the process, and a user can make
            # a page of it that blocks its reader.
            status = procfs.read(pid, "status")
            if not (processes.is_namespace_init(status) and _OF_ROOT.search(status)):
                return None
            words = procfs.read(pid, "cmdline").split(b"\0")
        except OSError:  # it has ended while we looked
            return None
        start = processes.start_time(pid)
        return _session_of(words, pid, start, self._realm) if start else None


def _session_of(
    words: Sequence[bytes], pid: int, start: int, realm: str
) -> Session | None:
    """The session whose init has that command line; None for another realm's."""
    found = command_line.parse(words)
    if found is None or not found.user or found.realm != realm:
        return None
    if not IDENTIFIER.fullmatch(found.incarnation):
        return None
    key = SessionKey(found.user, found.server)
    return Session(
        found.incarnation,
        key,
        pid,
        start,
        holding=found.holding,
        hint=PodHint(session=found.session, account=found.account),
    )


class PodPlacements:
    """Sessions of one realm in the containers of this node's pods."""

    # A pod's first program has ``patience`` seconds to become an init; ``owners`` finds
    # who made a process's control groups.

    #: Reads the container from a /proc/<pid>/cgroup.
    parse = staticmethod(cgroups.parse_container)

    def __init__(
        self,
        realm: str = "",
        *,
        patience: float = PATIENCE,
        owners: Callable[[int, str], AbstractSet[int]] = cgroups.owners,
    ) -> None:
        self._realm = realm
        self._patience = patience
        self._owners = owners
        #: Whether root has made a process' groups, by pid, start and container: that
        #: takes a look at all mounts of the node.
        self._is_roots: dict[tuple[int, int, cgroups.ContainerCgroup], bool] = {}
        self._lock = threading.Lock()
        self._hints: dict[str, PodHint] = {}

    def set_hint(self, incarnation: str, hint: PodHint) -> None:
        """Remember which pod an incarnation lives in; facts not repeated stay.

        Raises:
            NotFound: no pod was named (``unknown_session``).
        """
        if not hint.pod:
            raise _unknown(incarnation, "no pod was named")
        with self._lock:
            before = self._hints.pop(incarnation, None)
            if before is not None and before.pod == hint.pod:
                told = msgspec.structs.asdict(hint).items()
                said = {field: value for field, value in told if value}
                hint = msgspec.structs.replace(before, **said)
            self._hints[incarnation] = hint
            while len(self._hints) > _REMEMBERED:
                del self._hints[next(iter(self._hints))]

    def list(self) -> list[Session]:
        """Every claim on this node; one of an incarnation once its pod is known."""
        claims = tuple(_oldest(self._claims()))
        self._inquire({claim.incarnation for claim in claims})
        return sorted(
            (claim for claim in claims if self._may_be(claim)),
            key=lambda one: (one.incarnation, one.init_start),
        )

    def find(self, incarnation: str, pod: str = "") -> Session:
        """The session of an incarnation, in that pod or the one that the service named.

        Raises:
            NotFound: it is not there, or names another session
                (``unknown_session``).
        """
        self._inquire({incarnation})
        with self._lock:
            hint = self._hints.get(incarnation, PodHint())
        if pod not in {"", hint.pod}:
            hint = PodHint(pod=pod)
        if not hint.pod:
            raise _unknown(incarnation, "its pod was not told")
        deadline = time.monotonic() + self._patience
        while True:
            for session in _oldest(self._claims(hint.pod)):
                if session.incarnation != incarnation:
                    continue
                if hint.key not in {None, session.key}:
                    raise _unknown(incarnation, f"it claims to be {session.key}")
                return replace(session, hint=hint)  # its own claims do not count
            if time.monotonic() > deadline or not self._is_young(hint.pod):
                raise _unknown(incarnation, f"not in pod {hint.pod}")
            time.sleep(_PAUSE)  # nothing tells when a process has set its name

    def _inquire(self, incarnations: AbstractSet[str]) -> None:
        """Get hints of these from elsewhere; here the service sends them."""

    def _may_be(self, claim: Session) -> bool:
        with self._lock:
            hint = self._hints.get(claim.incarnation)
        return hint is None or hint.pod == claim.hint.pod

    def _claims(self, pod: str = "") -> Iterator[Session]:
        for pid in procfs.pids():
            # Of most processes no more than this has to be read.
            name = procfs.text(pid, "comm").strip()
            if name != session_init.NAME.decode():
                continue
            found = self._look(pid, pod)
            if found is None:
                continue
            start, container = found
            # The command line last: it is memory of the process, and its user can
            # keep its reader waiting.
            try:
                words = procfs.words(pid, "cmdline")
            except OSError:
                continue
            session = _session_of(words, pid, start, self._realm)
            if session is not None and self._look(pid, pod) == found:
                hint = PodHint(pod=container.pod)
                yield replace(session, hint=hint, container=container.id)

    def _look(self, pid: int, pod: str) -> tuple[int, cgroups.ContainerCgroup] | None:
        """When a process of (that) pod was started, and its container."""
        # None for a nested pid namespace: whoever makes one could give any environment.
        start = processes.start_time(pid)
        container = self.parse(procfs.text(pid, "cgroup"))
        if container is None or pod not in {"", container.pod} or not start:
            return None
        if len(_namespace_pids(pid)) != len(_namespace_pids("self")) + 1:
            return None
        return (start, container) if self._made_by_root(pid, start, container) else None

    def _made_by_root(
        self, pid: int, start: int, container: cgroups.ContainerCgroup
    ) -> bool:
        """Whether no user of the machine, who may name them so, made its groups."""
        known = self._is_roots.get((pid, start, container))
        if known is None:
            if len(self._is_roots) >= _REMEMBERED:
                self._is_roots.clear()
            known = not self._owners(pid, container.pod) - {0}
            self._is_roots[pid, start, container] = known
        return known

    def _is_young(self, pod: str) -> bool:
        """Whether a first program of that pod may be about to become an init."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return any(
            _namespace_pids(pid)[-1:] == ["1"]
            and (found := self._look(pid, pod)) is not None
            and now - found[0] / _TICKS < self._patience
            for pid in procfs.pids()
        )


Placements = LocalPlacements | PodPlacements


def _oldest(claims: Iterable[Session]) -> Iterable[Session]:
    found: dict[tuple[str, str], Session] = {}
    for one in sorted(claims, key=lambda one: one.init_start):
        found.setdefault((one.incarnation, one.hint.pod), one)
    return found.values()


def _namespace_pids(pid: int | str) -> list[str]:
    """A process's pid in each namespace from ours inwards; none when it is gone."""
    return procfs.status(pid).get("NSpid", "").split()


def _unknown(incarnation: str, detail: str) -> NotFound:
    return NotFound(Reason.UNKNOWN_SESSION, session=incarnation, detail=detail)
