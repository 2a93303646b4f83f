"""Options of sockets, of which CRIU leaves out most."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.kinds.sockets import has_datagrams
from jupyterhub_gpu_reclaim.checkpoint.sockets import inet, options
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import borrow

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return

IMAGE: Final = "sockets.json"


class SocketStates(Kind):
    """Options of sockets.

    They are in an image beside CRIU's, read and given back by copies of descriptors.
    """

    def __init__(self) -> None:
        self._read: dict[int, list[options.Option]] = {}  #: by inode
        self._options: dict[int, list[options.Option]] = {}  #: by entry

    def before_dump(self, dump: Dump) -> None:
        for process, inode, end in inet.sockets_in(dump.tree.processes):
            with contextlib.suppress(OSError):
                if has_datagrams(end):
                    raise ReclaimError(
                        Reason.SOCKET_UNREAD,
                        pid=process.ns_pid,
                        name=process.name,
                        where="a UNIX datagram socket",
                    )
                if found := options.read(end):
                    self._read[inode] = found

    def save(self, dump: Dump) -> None:
        dump.images.replace(IMAGE, codec.encode(self._read))

    def rewrite(self, back: Return) -> None:
        saved = back.images.decoded(IMAGE, dict[int, list[options.Option]])
        for entry in back.saved.entries.values():
            for name in ("isk", "usk", "nlsk"):
                if entry.HasField(name) and getattr(entry, name).ino in saved:
                    self._options[entry.id] = saved[getattr(entry, name).ino]

    def after_restore(self, back: Return) -> None:
        left = set(self._options)
        for number, pidfd, fd in back.holders(left):
            with contextlib.suppress(OSError), borrow(pidfd, fd) as end:
                options.write(end, self._options[number])
                left.discard(number)
