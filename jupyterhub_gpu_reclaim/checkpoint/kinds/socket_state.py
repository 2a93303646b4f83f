"""What CRIU leaves out of sockets: options, and messages that wait."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.sockets import datagrams, inet, options
from jupyterhub_gpu_reclaim.checkpoint.sockets.datagrams import Datagram  # noqa: TC001 msgspec reads it
from jupyterhub_gpu_reclaim.checkpoint.sockets.options import Option  # noqa: TC001 likewise
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns
from jupyterhub_gpu_reclaim.linux.descriptors import borrow_from, readable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return
    from jupyterhub_gpu_reclaim.linux.processes import Process

IMAGE: Final = "sockets.json"
_QUEUES: Final = "sk-queues.img"


class SocketState(Value, frozen=True, kw_only=True):
    """Of one socket; ``queue`` is None where CRIU keeps it."""

    options: list[Option] = msgspec.field(default_factory=list)
    queue: list[Datagram] | None = None


class SocketStates(Kind):
    """Options of sockets, and messages that wait.

    They are in an image beside CRIU's, read and given back by copies of descriptors.
    """

    def __init__(self) -> None:
        self._read: dict[int, SocketState] = {}  #: by inode
        self._states: dict[int, SocketState] = {}  #: by entry
        #: Of UNIX datagram sockets: entry → that of the one that it is connected to.
        self._peers: dict[int, int] = {}
        self._names: dict[bytes, int] = {}  #: likewise, name → entry

    def before_dump(self, dump: Dump) -> None:
        for process, inode, end in inet.sockets_in(dump.tree.processes):
            with contextlib.suppress(OSError):
                state = SocketState(
                    options=options.read(end), queue=_queue(process, end)
                )
                if state != SocketState():
                    self._read[inode] = state

    def save(self, dump: Dump) -> None:
        dump.images.replace(IMAGE, codec.encode(self._read))

    def rewrite(self, back: Return) -> None:
        saved = back.images.decoded(IMAGE, dict[int, SocketState])
        entries = back.saved.entries.values()
        by_inode = {inode: entry.id for entry in entries if (inode := _inode(entry))}
        for entry in entries:
            self._note(entry, by_inode)
        held = back.saved.held()
        self._states = {
            number: self._within_reach(number, state)
            for inode, state in saved.items()
            if (number := by_inode.get(inode, -1)) in held
        }
        if (queues := back.images.read(_QUEUES)) is not None:
            ours = {n for n, one in self._states.items() if one.queue is not None}
            back.images.replace(_QUEUES, _without(queues, ours))

    def after_restore(self, back: Return) -> None:
        with contextlib.ExitStack() as stack:
            held = self._borrow(back, stack)
            for number, state in self._states.items():
                if state.queue and number in held:
                    senders = self._senders(number, held)
                    if not senders or self._hears_all(number):
                        fresh = netns.make_socket(
                            back.init_pid, socket.AF_UNIX, socket.SOCK_DGRAM
                        )
                        senders.append(stack.enter_context(fresh))
                    datagrams.send(held[number], state.queue, senders)
            for number, state in self._states.items():
                if number in held:
                    options.write(held[number], state.options)

    def _note(self, entry: Any, by_inode: Mapping[int, int]) -> None:
        one = entry.usk
        if not entry.HasField("usk") or one.type != socket.SOCK_DGRAM:
            return
        if one.name:
            is_path = not one.name.startswith(b"\0")
            self._names[one.name.rstrip(b"\0") if is_path else one.name] = entry.id
        if one.peer in by_inode:
            self._peers[entry.id] = by_inode[one.peer]

    def _within_reach(self, number: int, state: SocketState) -> SocketState:
        """The state, less a queue that no socket can send to, which is left to CRIU."""
        if number in {*self._names.values(), *self._peers.values()}:
            return state
        return msgspec.structs.replace(state, queue=None)

    def _senders(
        self, number: int, held: Mapping[int, socket.socket]
    ) -> list[socket.socket]:
        """By which its messages may be sent; the last one by default."""
        if self._hears_all(number):
            named = self._names.values()
            return [held[one] for one in named if one in held]
        clients = [one for one, to in self._peers.items() if to == number]
        return [held[one] for one in clients if one in held]

    def _hears_all(self, number: int) -> bool:
        """Whether it has a name, and is not connected to one that it hears alone."""
        return number in self._names.values() and number not in self._peers

    def _borrow(
        self, back: Return, stack: contextlib.ExitStack
    ) -> dict[int, socket.socket]:
        wanted = {*self._states}
        if any(state.queue for state in self._states.values()):
            wanted |= {*self._peers, *self._names.values()}
        held: dict[int, socket.socket] = {}
        for number, pid, fd in back.holders(wanted):
            with contextlib.suppress(OSError):
                held[number] = stack.enter_context(borrow_from(pid, fd))
                wanted.discard(number)
        return held


def _queue(process: Process, end: socket.socket) -> list[Datagram] | None:
    family, kind, _ = options.kind_of(end)
    if family != socket.AF_UNIX or kind != socket.SOCK_DGRAM or not readable([end], 0):
        return None
    queue = datagrams.read(end)
    if queue is None and datagrams.name_of(end)[:1] not in {b"", b"\0"}:
        where = "a UNIX socket whose messages carry open files"
        raise ReclaimError(Reason.SOCKET_UNREAD, **process.facts, where=where)
    return queue


def _without(queues: bytes, ours: Collection[int]) -> bytes:
    kept = [images.join(images.SK_QUEUES_MAGIC, [])]
    entries = images.Entries([queues], images.SK_QUEUES_MAGIC)
    while entries.has_more():
        packet = entries.message("sk_packet_entry")
        data = entries.data(packet.length)
        if packet.id_for not in ours:
            kept += [images.framed(images.serialize(packet)), data]
    return b"".join(kept)


def _inode(entry: Any) -> int:
    for name in ("isk", "usk", "nlsk"):
        if entry.HasField(name):
            return int(getattr(entry, name).ino)
    return 0
