"""Saves what CRIU leaves out of sockets, in an image beside CRIU's.

The sockets of a frozen tree are looked at through copies of their descriptors
(:func:`read`), the image goes into the checkpoint, and the sockets of the restored,
still stopped tree get it back (:class:`Returned`).
"""

from __future__ import annotations

import contextlib
import select
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.sockets import datagrams, options
from jupyterhub_gpu_reclaim.checkpoint.sockets.datagrams import Datagram  # noqa: TC001 msgspec reads it
from jupyterhub_gpu_reclaim.checkpoint.sockets.options import (  # noqa: TC001 likewise
    Membership,
    Option,
)
from jupyterhub_gpu_reclaim.checkpoint.sockets.restored import holders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import netns, processes, procfs
from jupyterhub_gpu_reclaim.linux.descriptors import borrow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.memory.plan import ImageSource
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

IMAGE: Final = "sockets.json"
_FILES, _QUEUES = "files.img", "sk-queues.img"


class SocketState(Value, frozen=True, kw_only=True):
    """Of one socket; ``queue`` is None where CRIU keeps it."""

    options: list[Option] = msgspec.field(default_factory=list)
    memberships: list[Membership] = msgspec.field(default_factory=list)
    queue: list[Datagram] | None = None


class SocketStates(Value, frozen=True, kw_only=True):
    """The image: by the inode of the socket."""

    sockets: dict[int, SocketState] = msgspec.field(default_factory=dict)


def read(tree: Snapshot) -> bytes:
    """The image of a frozen tree's sockets.

    Raises:
        ReclaimError: what waits in one cannot be kept (``socket_unread``).
    """
    groups = options.groups_of(tree.init.pid)
    found: dict[int, SocketState] = {}
    seen: set[int] = set()
    for process in tree.processes:
        for inode, end in _sockets(process, seen):
            state = SocketState(
                options=options.read(end),
                memberships=options.memberships(end, groups),
                queue=_queue(process, end),
            )
            if state != SocketState():
                found[inode] = state
    return codec.encode(SocketStates(sockets=found))


def _sockets(process: Process, seen: set[int]) -> Iterator[tuple[int, socket.socket]]:
    """Yield a process's sockets that were not seen yet, with their inodes."""
    with processes.held(process) as pidfd:
        if pidfd is None:
            return
        for fd, target in procfs.descriptors(process.pid):
            inode = int(target[8:-1]) if target.startswith("socket:[") else 0
            if not inode or inode in seen:
                continue
            seen.add(inode)
            with contextlib.suppress(OSError), borrow(pidfd, fd) as end:
                yield inode, end


def _queue(process: Process, end: socket.socket) -> list[Datagram] | None:
    family, kind, _ = options.kind_of(end)
    if family != socket.AF_UNIX or kind != socket.SOCK_DGRAM or not _is_ready(end):
        return None
    queue = datagrams.read(end)
    if queue is None and datagrams.name_of(end)[:1] not in {b"", b"\0"}:
        raise ReclaimError(
            Reason.SOCKET_UNREAD,
            pid=process.ns_pid,
            name=process.name,
            where="a UNIX socket whose messages carry open files",
        )
    return queue


def _is_ready(end: socket.socket) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


@dataclass
class Returned:
    """The state of a saved tree's sockets, to be given back.

    Attributes:
        descriptors: (pid in the session, descriptor) → (kind, entry of the image).
        states: by entry.
        peers: entry → entry of the socket that it is connected to.
        names: name → entry, of datagram sockets of the UNIX family.
    """

    descriptors: Mapping[tuple[int, int], tuple[int, int]]
    states: dict[int, SocketState] = field(default_factory=dict)
    peers: dict[int, int] = field(default_factory=dict)
    names: dict[bytes, int] = field(default_factory=dict)

    def give_back(self, tree: Snapshot) -> None:
        """Give it to the sockets of the restored and still stopped tree.

        Raises:
            RestoreFailed: a message that waited cannot be sent again.
        """
        with contextlib.ExitStack() as stack:
            held = self._borrow(tree, stack)
            for number, state in self.states.items():
                if state.queue and number in held:
                    senders = self._senders(number, held)
                    if not senders or self._hears_all(number):
                        senders.append(_fresh(tree.init.pid, stack))
                    datagrams.send(held[number], state.queue, senders)
            for number, state in self.states.items():
                if number in held:
                    options.write(held[number], state.options)
                    for one in state.memberships:
                        options.join(held[number], one)

    def note(self, entry: Any, by_inode: Mapping[int, int]) -> None:
        """Note the name and the peer of an entry, if it is such a socket."""
        one = entry.usk
        if not entry.HasField("usk") or one.type != socket.SOCK_DGRAM:
            return
        if one.name:
            is_path = not one.name.startswith(b"\0")
            self.names[one.name.rstrip(b"\0") if is_path else one.name] = entry.id
        if one.peer in by_inode:
            self.peers[entry.id] = by_inode[one.peer]

    def within_reach(self, number: int, state: SocketState) -> SocketState:
        """The state, less a queue that nobody can send to, which is left to CRIU."""
        if number in {*self.names.values(), *self.peers.values()}:
            return state
        return msgspec.structs.replace(state, queue=None)

    def _senders(
        self, number: int, held: Mapping[int, socket.socket]
    ) -> list[socket.socket]:
        """By which its messages may be sent; the last one by default."""
        if self._hears_all(number):
            named = self.names.values()
            return [held[one] for one in named if one in held]
        clients = [one for one, to in self.peers.items() if to == number]
        return [held[one] for one in clients if one in held]

    def _hears_all(self, number: int) -> bool:
        """Whether it has a name, and is not connected to one that it hears alone."""
        return number in self.names.values() and number not in self.peers

    def _borrow(
        self, tree: Snapshot, stack: contextlib.ExitStack
    ) -> dict[int, socket.socket]:
        """Copies of the sockets that take part, by their entries."""
        wanted = {*self.states}
        if any(state.queue for state in self.states.values()):
            wanted |= {*self.peers, *self.names.values()}
        held: dict[int, socket.socket] = {}
        for number, pidfd, fd in holders(tree.processes, self.descriptors, wanted):
            with contextlib.suppress(OSError):
                held[number] = stack.enter_context(borrow(pidfd, fd))
                wanted.discard(number)
        return held


def take_out(
    files: dict[str, bytes],
    source: ImageSource,
    descriptors: Mapping[tuple[int, int], tuple[int, int]],
) -> Returned:
    """Read the image, and take what is given back here out of CRIU's images.

    Args:
        files: images that CRIU is given instead of the source's; changed.
        source: of the others.
        descriptors: (pid in the session, descriptor) → (kind, entry of the image).

    Raises:
        RestoreFailed: an image is off (``checkpoint_damaged``).
    """
    made = Returned(descriptors)
    try:
        image = codec.decode(b"".join(source.stream(IMAGE)), SocketStates)
    except BadRequest as error:
        raise images.damaged(f"{IMAGE} cannot be read ({error})") from None
    # The source's: what is handed over has lost its name in the others.
    entries = list(images.file_entries(b"".join(source.stream(_FILES))))
    by_inode = {inode: entry.id for entry in entries if (inode := _inode(entry))}
    for entry in entries:
        made.note(entry, by_inode)
    held = {number for _, number in descriptors.values()}
    made.states = {
        number: made.within_reach(number, state)
        for inode, state in image.sockets.items()
        if (number := by_inode.get(inode, -1)) in held
    }
    if source.size(_QUEUES) is not None:
        ours = {n for n, state in made.states.items() if state.queue is not None}
        files[_QUEUES] = _without(b"".join(source.stream(_QUEUES)), ours)
    return made


def _without(queues: bytes, ours: Collection[int]) -> bytes:
    """CRIU's image of messages without those for these entries."""
    kept = [images.join(images.SK_QUEUES_MAGIC, [])]
    for packet, head, data in images.packets(queues):
        if packet.id_for not in ours:
            kept += [head, data]
    return b"".join(kept)


def _inode(entry: Any) -> int:
    """The inode of a socket; 0 for anything else."""
    for name in ("isk", "usk", "nlsk"):
        if entry.HasField(name):
            return int(getattr(entry, name).ino)
    return 0


def _fresh(pid: int, stack: contextlib.ExitStack) -> socket.socket:
    made = netns.make_socket(pid, socket.AF_UNIX, socket.SOCK_DGRAM)
    return stack.enter_context(made)
