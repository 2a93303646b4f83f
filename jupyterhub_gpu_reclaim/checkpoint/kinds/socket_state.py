"""What CRIU leaves out of sockets: options and memberships."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.kinds.sockets import has_datagrams
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, options
from jupyterhub_gpu_reclaim.checkpoint.sockets.options import (  # noqa: TC001 msgspec reads it
    Membership,
    Option,
)
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import borrow

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return

IMAGE: Final = "sockets.json"


class SocketState(Value, frozen=True, kw_only=True):
    """Of one socket."""

    options: list[Option] = msgspec.field(default_factory=list)
    memberships: list[Membership] = msgspec.field(default_factory=list)


class SocketStates(Kind):
    """Options of sockets, and multicast groups.

    They are in an image beside CRIU's, read and given back by copies of descriptors.
    """

    def __init__(self) -> None:
        self._read: dict[int, SocketState] = {}  #: by inode
        self._states: dict[int, SocketState] = {}  #: by entry

    def before_dump(self, dump: Dump) -> None:
        groups = options.groups_of(dump.init_pid)
        for process, inode, end in inet.sockets_in(dump.tree.processes):
            with contextlib.suppress(OSError):
                if has_datagrams(end):
                    raise ReclaimError(
                        Reason.SOCKET_UNREAD,
                        pid=process.ns_pid,
                        name=process.name,
                        where="a UNIX datagram socket",
                    )
                state = SocketState(
                    options=options.read(end),
                    memberships=options.memberships(end, groups),
                )
                if state != SocketState():
                    self._read[inode] = state

    def save(self, dump: Dump) -> None:
        dump.images.replace(IMAGE, codec.encode(self._read))

    def rewrite(self, back: Return) -> None:
        saved = back.images.decoded(IMAGE, dict[int, SocketState])
        for entry in back.saved.entries.values():
            for name in ("isk", "usk", "nlsk"):
                if entry.HasField(name) and getattr(entry, name).ino in saved:
                    self._states[entry.id] = saved[getattr(entry, name).ino]

    def after_restore(self, back: Return) -> None:
        left = set(self._states)
        for number, pidfd, fd in back.holders(left):
            with contextlib.suppress(OSError), borrow(pidfd, fd) as end:
                options.write(end, self._states[number].options)
                for one in self._states[number].memberships:
                    options.join(end, one)
                left.discard(number)
