"""Holds the ports of saved sessions, in a network namespace that others share.

A session on the machine itself has no network of its own: any user could bind its ports
while it is suspended, and so keep it from coming back. So the agent has a socket bound
to each, from just before its end until it is back. Such a holder is root's, has
SO_REUSEPORT, and never listens: the kernel lets only root's sockets with the same
option, as CRIU makes them, be bound beside it, and refuses connections as if the port
were free. The session's own sockets are made so before they end: no moment is left in
which the port is free. The list is in a file, and systemd keeps the sockets while the
agent is restarted (``linux.fdstore``). Every user has a budget, and so has the machine.

An abstract name of a UNIX socket has one owner: nothing can be bound beside it, not
even by root. So its holder is the session's own socket, copied before its end and shut
down, or one of ours, and it is closed just before CRIU binds the name. Who is quicker
then is told as the obstacle.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.abstract_names import Name
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.durable import write_durably
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Finding, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import fdstore, procfs
from jupyterhub_gpu_reclaim.linux.descriptors import (
    as_socket,
    borrow_from,
    copied_from,
)
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Ports and names that suspended sessions of one user may keep on one machine.
PER_USER: Final = 512
#: Of the ports that the kernel gives to connecting programs, all users together keep
#: one in so many; and never more than systemd's unit keeps (FileDescriptorStoreMax).
_SHARE: Final = 4
_MOST: Final = 8000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_UNCONNECTED: Final = {TcpState.LISTEN, TcpState.CLOSE, TcpState.BOUND_INACTIVE}
_FAMILIES: Final = {socket.AF_INET, socket.AF_INET6}

_log = logging.getLogger(__name__)


class Needs(Value, frozen=True, kw_only=True):
    user: str
    ports: list[Port]
    names: list[Name] = msgspec.field(default_factory=list)


class _Record(Value, frozen=True, kw_only=True):
    version: int = codec.VERSION
    #: by checkpoint
    held: dict[str, Needs] = msgspec.field(default_factory=dict)


class HeldPorts:
    """The ports held for saved sessions; one instance per state folder, which exists.

    Every call is idempotent. What the file claims is bound again by :meth:`settle`.
    """

    def __init__(
        self, folder: Path, *, most: int | None = None, per_user: int = PER_USER
    ) -> None:
        self._path = folder / "ports.json"
        self._most = most
        self._per_user = per_user
        self._lock = threading.Lock()
        self._sockets: dict[str, dict[Port | Name, socket.socket]] = {}
        self._received: dict[Port, socket.socket] = {}
        self._missing: set[Port] = set()
        #: Checkpoints of sessions that are about to bind their own.
        self._returning: set[str] = set()

    def findings(self, user: str, count: int) -> list[Finding]:
        """Why so many more cannot be held for that user; empty is good."""
        return self._beyond_budget(self._read().held.values(), user, count)

    def _beyond_budget(
        self, held: Collection[Needs], user: str, count: int
    ) -> list[Finding]:
        mine = sum(len(one.ports) for one in held if one.user == user)
        others = sum(len(one.ports) for one in held)
        if mine + count > self._per_user:
            limit = self._per_user
            return [finding(Reason.TOO_MANY_PORTS, count=count, held=mine, limit=limit)]
        if others + count > (limit := self._limit()):
            return [finding(Reason.PORTS_SHORT, count=count, held=others, limit=limit)]
        return []

    def hold(
        self,
        checkpoint: str,
        user: str,
        ports: Iterable[Port],
        pids: Collection[int] = (),
        names: Iterable[Name] = (),
    ) -> None:
        """Hold those ports and names from now on, but not what is beyond the budget.

        ``pids`` are the session's processes, which are stopped and about to be ended.

        Raises:
            Refused: the file cannot be read or written (``internal``).
        """
        wanted = Needs(user=user, ports=sorted(set(ports)), names=list(names))
        with self._lock:
            held = self._read().held
            needs = held.get(checkpoint)
            if needs is None:
                needs = self._within_budget(held.values(), checkpoint, wanted)
                if not needs.ports and not needs.names:
                    return
                self._write({**held, checkpoint: needs})
            if pids:
                _share_with_root(pids, {port.port for port in needs.ports})
                self._copy(checkpoint, needs.names, pids)
            self._bind(checkpoint, needs)

    def let_go(self, checkpoint: str) -> None:
        """Hold nothing for that checkpoint any more.

        Raises:
            Refused: the file cannot be read or written (``internal``).
        """
        with self._lock:
            self._close(checkpoint)
            held = self._read().held
            if checkpoint in held:
                self._write({k: v for k, v in held.items() if k != checkpoint})

    def let_datagrams_go(self, checkpoint: str) -> None:
        """The session has these sockets again: a holder would take what is theirs."""
        with self._lock:
            here = self._sockets.get(checkpoint, {})
            for one in list(here):
                if isinstance(one, Port) and one.protocol == "udp":
                    here.pop(one).close()
            fdstore.forget(_short(checkpoint, "udp"))

    def names(self, checkpoint: str) -> frozenset[Name]:
        with self._lock:
            here = self._sockets.get(checkpoint, ())
            return frozenset(one for one in here if isinstance(one, Name))

    def let_names_go(self, checkpoint: str) -> None:
        """CRIU is about to bind them; until the session is back, or did not come."""
        with self._lock:
            self._returning.add(checkpoint)
            here = self._sockets.get(checkpoint, {})
            for one in list(here):
                if isinstance(one, Name):
                    here.pop(one).close()

    def take_again(self, checkpoint: str) -> None:
        """Hold again what was let go, if it is there: the session did not come back."""
        with self._lock:
            self._returning.discard(checkpoint)
            needs = self._read().held.get(checkpoint)
            if needs is not None:
                self._bind(checkpoint, needs)

    def settle(self) -> None:
        """Hold what the file says, after a start; with what systemd has kept, first.

        Raises:
            Refused: the file cannot be read or written (``internal``).
        """
        with self._lock:
            self._receive()
            self._bind_all()
            for rest in self._received.values():
                rest.close()
            self._received.clear()

    def missing(self) -> list[Port]:
        """Ports that others took while no agent ran and still have; tried once more.

        Raises:
            Refused: the file cannot be read (``internal``).
        """
        with self._lock:
            self._bind_all()
            return sorted(self._missing)

    def checkpoints(self) -> list[str]:
        """Checkpoints for which something is to be held.

        Raises:
            Refused: the file cannot be read (``internal``).
        """
        return sorted(self._read().held)

    def _limit(self) -> int:
        if self._most is not None:
            return self._most
        low, high = map(int, _RANGE.read_text().split())
        return min((high - low + 1) // _SHARE, _MOST)

    def _within_budget(
        self, held: Collection[Needs], checkpoint: str, wanted: Needs
    ) -> Needs:
        user, ports, names = wanted.user, wanted.ports, wanted.names
        for one in self._beyond_budget(held, user, len(ports)) if ports else ():
            _log.warning("- no port is held for %s: %s", checkpoint, one)
            ports = []
        mine = sum(len(one.names) for one in held if one.user == user)
        room = max(0, self._per_user - mine)
        if len(names) > room:
            _log.warning("- of %s only %d socket names are held", checkpoint, room)
        return Needs(user=user, ports=ports, names=names[:room])

    def _bind_all(self) -> None:
        held = self._read().held
        self._missing &= {port for needs in held.values() for port in needs.ports}
        for checkpoint, needs in held.items():
            if checkpoint not in self._returning:
                self._bind(checkpoint, needs)

    def _copy(
        self, checkpoint: str, names: Collection[Name], pids: Iterable[int]
    ) -> None:
        """Hold the sockets with those names of processes that are about to end."""
        here = self._sockets.setdefault(checkpoint, {})
        for pid, descriptor in inet.tree_inodes(pids).values():
            with contextlib.suppress(OSError):
                one = as_socket(copied_from(pid, descriptor))
                name = _owned(one)
                if name is None or name in here or name not in names:
                    one.close()
                    continue
                here[name] = one
                with contextlib.suppress(OSError):  # who connects is refused
                    one.shutdown(socket.SHUT_RDWR)

    def _bind(self, checkpoint: str, needs: Needs) -> None:
        here = self._sockets.setdefault(checkpoint, {})
        for name in needs.names:
            if name not in here:
                with contextlib.suppress(OSError):  # it is taken
                    here[name] = _named(name)
        added: dict[str, list[int]] = {"tcp": [], "udp": []}
        for port in needs.ports:
            if port in here:
                continue
            try:
                kept = self._received.pop(port) if port in self._received else None
                here[port] = kept or _bound(port)
            except OSError as error:
                if port not in self._missing:
                    self._missing.add(port)
                    what = f"{port.protocol} port {port.port} of a suspended session"
                    _log.warning("- %s cannot be held: %s", what, error.strerror)
            else:
                self._missing.discard(port)
                added[port.protocol].append(here[port].fileno())
        for protocol, descriptors in added.items():
            fdstore.keep(_short(checkpoint, protocol), descriptors)

    def _close(self, checkpoint: str) -> None:
        for one in self._sockets.pop(checkpoint, {}).values():
            one.close()
        self._returning.discard(checkpoint)
        for protocol in ("tcp", "udp"):
            fdstore.forget(_short(checkpoint, protocol))

    def _receive(self) -> None:
        for name, descriptor in fdstore.received():
            fdstore.forget(name)  # what is bound again is kept again
            with contextlib.suppress(OSError):
                one = as_socket(descriptor)
                if one.family in _FAMILIES:
                    self._received[_port_of(one)] = one
                else:
                    one.close()

    def _read(self) -> _Record:
        try:
            return codec.decode_kept(
                self._path.read_bytes(), _Record, "The list of ports"
            )
        except FileNotFoundError:
            return _Record()
        except BadRequest as error:
            if error.reason is Reason.OTHER_VERSION:
                raise
            raise _refused(self._path, error) from None
        except OSError as error:
            raise _refused(self._path, error) from None

    def _write(self, held: dict[str, Needs]) -> None:
        try:
            write_durably(self._path, codec.encode(_Record(held=held)))
        except OSError as error:
            raise _refused(self._path, error) from None


def shares_network(init_pid: int) -> bool:
    return procfs.link(init_pid, "ns/net") == procfs.link(os.getpid(), "ns/net")


def bound_now(init_pid: int, pids: Iterable[int]) -> int:
    """How many ports the sockets of those processes would keep, as far as is seen.

    A kernel before 6.8 does not list a TCP socket that is bound and no more.

    Raises:
        Refused: the session or the kernel's list is not there.
    """
    found = inet.sockets_of(init_pid, inet.tree_inodes(pids).keys())
    return len(
        {
            (one.protocol, one.local)
            for one in found
            if one.state in _UNCONNECTED and one.local.port
        }
    )


def _share_with_root(pids: Collection[int], numbers: Collection[int]) -> None:
    """Let root bind beside the sockets of those processes, and no other user."""
    inet.reset_all(os.getpid(), pids, held=False)  # these would be in the way
    for pid, descriptor in inet.tree_inodes(pids).values():
        with contextlib.suppress(OSError), borrow_from(pid, descriptor) as one:
            if one.family in _FAMILIES and one.getsockname()[1] in numbers:
                os.fchown(one.fileno(), 0, -1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _bound(port: Port) -> socket.socket:
    """A holder, unless (OSError) that port is taken."""
    with socket.socket(port.family, port.kind) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # it is never read
        # To bind, it disregards connections; once bound it is disregarded by none.
        port.bind(one, lenient=port.protocol == "tcp" or port.shared)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(port.shared))
        return one.dup()


def _named(name: Name) -> socket.socket:
    """A holder of an abstract name, unless (OSError) it is taken."""
    with socket.socket(socket.AF_UNIX, name.kind) as one:
        one.bind(name.name)
        if name.kind == socket.SOCK_DGRAM:
            one.shutdown(socket.SHUT_RDWR)
        return one.dup()


def _owned(one: socket.socket) -> Name | None:
    """The abstract name that socket has itself; an accepted one only shows its."""
    if one.family != socket.AF_UNIX:
        return None
    name = one.getsockname()
    if not isinstance(name, bytes) or not name.startswith(b"\0"):
        return None
    if one.type != socket.SOCK_DGRAM:
        with contextlib.suppress(OSError):
            one.getpeername()
            return None
    return Name(int(one.type), name)


def _port_of(one: socket.socket) -> Port:
    address, number = one.getsockname()[:2]
    is_v6 = one.family == socket.AF_INET6
    return Port(
        "tcp" if one.type == socket.SOCK_STREAM else "udp",
        number,
        address,
        is_v6 and bool(one.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)),
        bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)),
    )


def _short(checkpoint: str, protocol: str) -> str:
    name = f"{protocol} {checkpoint}".encode()
    return hashlib.blake2s(name, digest_size=6).hexdigest()


def _refused(path: Path, error: Exception) -> Refused:
    return Refused(Reason.INTERNAL, detail=f"{path}: {error}")
