"""Keeps the ports of saved sessions free, in a network namespace that others share.

They are reserved before a release, given back after a restore or a discard, corrected
at the agent's start, and checked before a restore (:func:`check_free`). A port that an
administrator has reserved is never taken out of the kernel's list.

The kernel never hands out a port of ``net.ipv4.ip_local_reserved_ports`` by itself, for
IPv6 neither, but a program may still bind it explicitly; :func:`check_free` finds that.
The list is lost at a reboot, so our reservations stand in a file as well.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.inet import Port, TcpConnection
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.durable import write_durably
from jupyterhub_gpu_reclaim.common.errors import BadRequest, Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Finding, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns, procfs
from jupyterhub_gpu_reclaim.linux.sock_diag import Diag, TcpState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jupyterhub_gpu_reclaim.linux.sock_diag import InetSocket

SYSCTL: Final = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
LOCK: Final = Path("/run/jupyterhub-gpu-reclaim-ports.lock")
_LIST_BYTES: Final = 1 << 20  # more than every port, written singly
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PROTOCOLS: Final = {6: "tcp", 17: "udp"}
_LOOK_AGAIN: Final = 0.1  # seconds
_SOMEBODY: Final = "another program of that machine"

_log = logging.getLogger(__name__)


class _Record(Value, frozen=True, kw_only=True):
    """What the file holds."""

    version: int = 1
    boot: str = ""
    #: checkpoint → ports
    reserved: dict[str, list[int]] = msgspec.field(default_factory=dict)
    #: of ours, those that were in the kernel's list before us; not ours to take out
    foreign: list[int] = msgspec.field(default_factory=list)

    def all(self) -> set[int]:
        """Every port that some checkpoint needs."""
        return {port for ports in self.reserved.values() for port in ports}


class Reservations:
    """The ports reserved for saved sessions; one instance per state folder.

    Every call is idempotent, takes a lock that other processes respect, and survives a
    crash at any point: what the file claims is put back by :meth:`reapply`.

    Args:
        folder: the agent's state folder, which exists.
        sysctl: the kernel's list, in the network namespace of the caller.
    """

    def __init__(self, folder: Path, *, sysctl: Path = SYSCTL) -> None:
        self._path = folder / "ports.json"
        self._sysctl = sysctl

    def reserve(self, checkpoint: str, ports: Iterable[Port]) -> None:
        """Keep those ports for that checkpoint.

        Raises:
            Refused: the kernel's list or the file cannot be written (``internal``).
        """
        with self._locked():
            record = self._read()
            current = self._current()
            numbers = sorted({port.port for port in ports})
            foreign = set(record.foreign)
            foreign |= (set(numbers) - record.all()) & current
            record = msgspec.structs.replace(
                record,
                reserved={**record.reserved, checkpoint: numbers},
                foreign=sorted(foreign),
                boot=_boot(),
            )
            self._write(record)
            self._apply(current | record.all())

    def release(self, checkpoint: str) -> None:
        """Give the ports of that checkpoint back, save those that others reserved."""
        with self._locked():
            record = self._read()
            if checkpoint not in record.reserved:
                return
            reserved = {k: v for k, v in record.reserved.items() if k != checkpoint}
            rest = msgspec.structs.replace(record, reserved=reserved)
            gone = record.all() - rest.all()
            self._apply(self._current() - (gone - set(record.foreign)))
            foreign = sorted(set(record.foreign) & rest.all())
            self._write(msgspec.structs.replace(rest, foreign=foreign))

    def reapply(self, keep: Collection[str] | None = None) -> None:
        """Put the kernel's list right after a crash or a reboot.

        Args:
            keep: the checkpoints that still exist; None keeps every reservation.
        """
        for checkpoint in self.checkpoints():
            if keep is not None and checkpoint not in keep:
                self.release(checkpoint)
        with self._locked():
            record = self._read()
            current = self._current()
            if record.boot != _boot():
                foreign = sorted(record.all() & current)
                record = msgspec.structs.replace(record, boot=_boot(), foreign=foreign)
                self._write(record)
            if not record.all() <= current:
                self._apply(current | record.all())

    def checkpoints(self) -> list[str]:
        """Those that have ports reserved."""
        return sorted(self._read().reserved)

    def _current(self) -> set[int]:
        try:
            return read_sysctl(self._sysctl)
        except OSError as error:
            raise _refused(self._sysctl, error) from None

    def _apply(self, ports: set[int]) -> None:
        # An empty line empties the list; the kernel takes a page at a time.
        data = (format_ranges(ports) + "\n").encode()
        try:
            with self._sysctl.open("wb", buffering=0) as file:
                while data:
                    data = data[file.write(data) or len(data) :]
        except OSError as error:
            raise _refused(self._sysctl, error) from None

    def _read(self) -> _Record:
        try:
            return codec.decode(self._path.read_bytes(), _Record)
        except FileNotFoundError:
            return _Record()
        except (OSError, BadRequest) as error:
            raise _refused(self._path, error) from None

    def _write(self, record: _Record) -> None:
        try:
            write_durably(self._path, codec.encode(record))
        except OSError as error:
            raise _refused(self._path, error) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # One for the machine, as the kernel's list is: two Hubs have an agent each.
        # Only root can hold it, for a few small writes: waiting needs no time limit.
        try:
            descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(LOCK, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def shares_network(init_pid: int) -> bool:
    """Whether that session lives in our own network namespace."""
    return procfs.link(init_pid, "ns/net") == procfs.link(os.getpid(), "ns/net")


def await_free(
    init_pid: int,
    ports: Iterable[Port],
    connections: Collection[TcpConnection] = (),
    *,
    seconds: float,
    uid: int | None = None,
) -> list[Finding]:
    """As :func:`check_free`, once nothing is in the way or the time is up.

    What is in the way is most often short-lived: another program's own connection to
    somewhere, to which the kernel has given the same number. What has ended and no
    program has any more, such as our own of a return that failed, is removed.
    """
    ports, deadline = list(ports), time.monotonic() + seconds
    _remove_ended(init_pid, ports, connections)
    while found := check_free(init_pid, ports, connections, uid=uid):
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_AGAIN)  # the kernel has no event for a port that is free again
    return found


def check_free(
    init_pid: int,
    ports: Iterable[Port],
    connections: Collection[TcpConnection] = (),
    *,
    uid: int | None = None,
) -> list[Finding]:
    """What is in the way of a restore under ``init_pid``.

    One finding per port, sorted; an empty list is good. A port that must be bound is
    tried, as CRIU will bind it; a connection is in the way of the very same one only
    (same addresses and ports), of whatever state.

    Args:
        init_pid: the holding init.
        ports: to be bound.
        connections: to be taken up again.
        uid: whose programs are named to the session's user; None names all.
    """
    with Diag(init_pid) as diag:
        there = diag.sockets()
    taken = {port.port: _on(port, there) for port in ports if _is_taken(init_pid, port)}
    taken |= {
        one.local.port: [one]
        for one in there
        if one.protocol == socket.IPPROTO_TCP
        and TcpConnection(one.local, one.remote) in connections
    }
    return [
        finding(Reason.PORT_IN_USE, port=port, holder=_holder(found, uid))
        for port, found in sorted(taken.items())
    ]


def _remove_ended(
    init_pid: int, ports: Collection[Port], connections: Collection[TcpConnection]
) -> None:
    """End what stands on those ports and connections although no program has it."""
    numbers = {port.port for port in ports if port.protocol == "tcp"}
    with Diag(init_pid) as diag:
        for one in diag.sockets({0}):
            is_there = one.local.port in numbers or (
                TcpConnection(one.local, one.remote) in connections
            )
            if is_there and _has_ended(one):
                diag.destroy(one)


def _has_ended(one: InetSocket) -> bool:
    is_tcp = one.protocol == socket.IPPROTO_TCP
    return is_tcp and one.inode == 0 and one.state in inet.ENDING


def _is_taken(init_pid: int, port: Port) -> bool:
    """Whether the kernel refuses that port to a program that is as lenient as CRIU."""
    address = ipaddress.ip_address(port.address)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if port.protocol == "tcp" else socket.SOCK_DGRAM
    try:
        with netns.make_socket(init_pid, family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                only = int(port.only_v6)
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            probe.bind((port.address, port.port))
    except OSError as error:
        # Anything else is no matter of another program, and CRIU will say it.
        return error.errno == errno.EADDRINUSE
    return False


def _on(port: Port, there: Iterable[InetSocket]) -> list[InetSocket]:
    """The sockets that may be in that port's way, listeners first."""
    on = [
        one
        for one in there
        if one.local.port == port.port and _PROTOCOLS[one.protocol] == port.protocol
    ]
    on.sort(key=lambda one: one.state is not TcpState.LISTEN)
    return on


def read_sysctl(path: Path = SYSCTL) -> set[int]:
    """The kernel's list as it is now.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        # The kernel answers one read only, and cuts what does not fit.
        return parse_ranges((file.read(_LIST_BYTES) or b"").decode("ascii"))


def parse_ranges(line: str) -> set[int]:
    """``8000,9000-9002`` as numbers; the kernel's own format.

    Raises:
        Refused: it is no such list (``internal``).
    """
    ports: set[int] = set()
    for part in line.strip().split(","):
        first, dash, last = part.partition("-")
        if not part:
            continue
        try:
            ports.update(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise Refused(Reason.INTERNAL, detail=f"no list of ports: {part}") from None
    return ports


def format_ranges(ports: Iterable[int]) -> str:
    """Numbers as ``8000,9000-9002``; empty for none."""
    runs: list[list[int]] = []
    for port in sorted(set(ports)):
        if runs and runs[-1][1] == port - 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)


def _holder(found: Collection[InetSocket], uid: int | None) -> str:
    if found and all(map(_has_ended, found)):
        return "a connection that is just ending"
    return holder_of([one.inode for one in found], uid)


def holder_of(inodes: Collection[int], uid: int | None) -> str:
    """The holder of one of those sockets; named where it is that user's program."""
    wanted = {f"socket:[{inode}]" for inode in inodes if inode}
    for pid in procfs.pids() if wanted else ():
        if any(one.target in wanted for one in procfs.descriptors(pid)):
            name = f"{procfs.name(pid)} (process {pid})"
            _log.info("- a port that a suspended session needs is taken by %s", name)
            owner = procfs.status(pid).get("Uid", "").split()[:1]
            return name if uid is None or owner == [str(uid)] else _SOMEBODY
    return _SOMEBODY


def _boot() -> str:
    return _BOOT_ID.read_text().strip()


def _refused(path: Path, error: Exception) -> Refused:
    return Refused(Reason.INTERNAL, detail=f"{path}: {error}")
