"""Finds the sessions on this node: nothing is registered, so nothing is lost.

It only reads ``/proc``: it never starts, stops or signals anything.
``LocalPlacements`` believes only what a user cannot forge: a process of root that is
pid 1 of a pid namespace of its own and runs our ``session_init``. For sessions in
containers see ``pods``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

_IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MODES = ("start", "hold")
#: Lines of /proc/<pid>/status: pid 1 of a namespace below ours; all four uids root's.
_FIRST = re.compile(rb"^NSpid:(?:\t\d+)+\t1$", re.MULTILINE)
_OF_ROOT = re.compile(rb"^Uid:\t0\t0\t0\t0$", re.MULTILINE)


class Told(Value, frozen=True, kw_only=True):
    """The service's facts about a session, which the session itself cannot change."""

    pod: str = ""  #: uid of the pod that it lives in; empty outside of Kubernetes
    key: SessionKey | None = None  #: whose it is; None where that was not said
    image: str = ""  #: of its container, as the kubelet names it
    #: Of its node, for a later restore.
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """One incarnation on this node.

    Attributes:
        init_pid: host pid of its init.
        init_start: the init's start time in clock ticks since boot; with the pid it
            names one process for ever.
        holding: the init was started to wait for a tree (``hold``).
        container: id of the container that it lives in; empty outside of Kubernetes.
        told: the service's facts about it. Its ``pod`` is where it was found.
    """

    incarnation: str
    key: SessionKey
    init_pid: int
    init_start: int
    holding: bool
    container: str = ""
    told: Told = field(default_factory=Told)


class Placements(Protocol):
    """Where sessions of this node are found. All calls only read; repeat at will."""

    def list(self) -> list[Session]:
        """Every session with an init on this node.

        In Kubernetes these are claims, of which two may name the same incarnation.
        """

    def find(self, incarnation: str, pod: str = "") -> Session:
        """That incarnation's session.

        Args:
            incarnation: which.
            pod: the uid of its pod; empty for the one that the service named.

        Raises:
            NotFound: there is no init of that incarnation here (``unknown_session``).
        """

    def tell(self, incarnation: str, told: Told) -> None:
        """Take the service's facts about an incarnation, before anything is done to it.

        Raises:
            NotFound: it cannot be one of ours (``unknown_session``).
        """


class LocalPlacements:
    """Sessions that run in namespaces on this machine, beside the Hub.

    Args:
        realm: only sessions of this realm are ours; two Hubs on one machine (or two
            tests) have an agent each, and never touch each other's sessions.
    """

    def __init__(self, realm: str = "", proc: Path = Path("/proc")) -> None:
        self._realm = realm
        self._proc = proc
        #: Incarnation → where its init was; replaced whole, so threads do no harm.
        self._pids: dict[str, int] = {}

    def list(self) -> list[Session]:
        """Every session with an init on this machine, by incarnation."""
        found: dict[str, Session] = {}
        for pid in procfs.pids(self._proc):
            session = self._session(pid)
            if session is not None:
                found.setdefault(session.incarnation, session)
        self._pids = {name: session.init_pid for name, session in found.items()}
        return sorted(found.values(), key=lambda session: session.incarnation)

    def find(self, incarnation: str, pod: str = "") -> Session:
        """That incarnation's session, or ``NotFound`` (``unknown_session``)."""
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

    def tell(self, incarnation: str, told: Told) -> None:
        """Do nothing: an init of root can be trusted on its session."""

    def _session(self, pid: int) -> Session | None:
        """The session whose init that process is; None when it is none of ours."""
        try:
            # The command line last: it is memory of the process, and a user can make
            # a page of it that blocks its reader.
            if not _is_root_and_first(procfs.read(pid, "status", self._proc)):
                return None
            words = procfs.read(pid, "cmdline", self._proc).split(b"\0")
            stat = procfs.read(pid, "stat", self._proc)
        except OSError:  # it has ended while we looked
            return None
        if not any(b"session_init" in word for word in words[:6]):
            return None
        fields = stat.rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X"):
            return None
        return parse(words, pid, int(fields[19]), self._realm)


def _is_root_and_first(status: bytes) -> bool:
    """All four uids are root's, and it is pid 1 of a namespace below ours."""
    return bool(_FIRST.search(status) and _OF_ROOT.search(status))


def parse(words: Iterable[bytes], pid: int, start: int, realm: str) -> Session | None:
    """Read ``start|hold --incarnation I --user=U --server=S … [-- CMD…]``.

    Args:
        words: a command line.
        pid: whose.
        start: its start time.
        realm: the agent's own; None comes back for a session of another.
    """
    text = [word.decode("utf-8", "replace") for word in words]
    mode_at = next((i for i, word in enumerate(text) if word in _MODES), None)
    if mode_at is None:
        return None
    options = text[mode_at + 1 :]
    if "--" in options:
        options = options[: options.index("--")]
    values = _values(options)
    incarnation, user = values.get("--incarnation", ""), values.get("--user", "")
    if not user or not _IDENTIFIER.fullmatch(incarnation):
        return None
    if values.get("--realm", "") != realm:
        return None
    key = SessionKey(user, values.get("--server", ""))
    return Session(incarnation, key, pid, start, holding=text[mode_at] == "hold")


def _values(options: list[str]) -> dict[str, str]:
    """Options with their values, in one word or two; a value is never a name."""
    values: dict[str, str] = {}
    words = iter(options)
    for word in words:
        if word.startswith("--") and word != "--relay":
            name, equals, value = word.partition("=")
            values.setdefault(name, value if equals else next(words, ""))
    return values
