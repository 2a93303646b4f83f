"""Gives a session's own connections the data back that they had not sent yet.

What does not fit into the receiver's window waits at the sender. CRIU gives it back as
soon as it has made the sender's end, and there is no other end yet: the kernel answers
with a reset, and the restore fails. A lock on the network, as CRIU can have one, would
be one for the whole machine where sessions share its network. So that part is taken out
of the images (:func:`take_out`), and sent when both ends are there (:func:`send`), by
the ordinary way: the tree is stopped, the kernel moves as much as fits.

An end of the connection (shutdown) stands behind that data, so it is taken out with it
and said anew.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.sockets.restored import holders
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import borrow
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.memory.plan import ImageSource
    from jupyterhub_gpu_reclaim.linux.processes import Process

_FILES: Final = "files.img"
#: State of a connection without the end (FIN) that it has sent.
_WITHOUT_END: Final = {
    int(TcpState.FIN_WAIT1): int(TcpState.ESTABLISHED),
    int(TcpState.CLOSING): int(TcpState.CLOSE_WAIT),
    int(TcpState.LAST_ACK): int(TcpState.CLOSE_WAIT),
}
#: Of CRIU's ``sk_shutdown``.
_READ: Final = 1
_SEQUENCE: Final = (1 << 32) - 1
_SNDBUFFORCE, _BUF_LOCK, _NOTSENT_LOWAT = 32, 72, 25
#: The largest buffer that the kernel takes; it doubles what it is told.
_MOST: Final = (1 << 30) - 1


class Unsent(NamedTuple):
    """Data that one end of a connection has not sent yet."""

    data: bytes
    has_ended: bool  #: nothing follows


def take_out(
    files: dict[str, bytes],
    source: ImageSource,
    descriptors: Mapping[tuple[int, int], tuple[int, int]],
) -> dict[int, Unsent]:
    """Take it out of the images of the connections that are restored.

    Args:
        files: images that CRIU is given instead of the source's; changed.
        source: of the others.
        descriptors: (pid in the session, descriptor) → (kind, entry of the image). What
            nobody holds, such as a socket in a message under way, is left alone.

    Returns:
        What is to be sent, by its entry of ``files.img``.

    Raises:
        RestoreFailed: an image is off (``checkpoint_damaged``).
    """
    held = {number for _, number in descriptors.values()}
    found: dict[int, Unsent] = {}

    def change(entry: Any) -> bool:
        isk = entry.isk
        if (
            entry.type != images.TYPE_INETSK
            or isk.proto != socket.IPPROTO_TCP
            or isk.state in {TcpState.CLOSE, TcpState.LISTEN}
            or entry.id not in held
        ):
            return False
        name = f"tcp-stream-{isk.ino:x}.img"
        if source.size(name) is None:
            return False
        image = b"".join(source.stream(name))
        state = _WITHOUT_END.get(isk.state, isk.state)
        cut = _cut(image, has_ended=state != isk.state)
        if cut is None:
            return False
        files[name], found[entry.id] = cut
        if state == isk.state:
            return False
        isk.state = state
        reads_no_more = isk.shutdown & _READ
        isk.ClearField("shutdown")
        if reads_no_more:
            isk.shutdown = _READ
        return True

    files[_FILES] = images.rewrite_files(files[_FILES], change)
    return found


def send(
    tree: Iterable[Process],
    descriptors: Mapping[tuple[int, int], tuple[int, int]],
    waiting: Mapping[int, Unsent],
) -> None:
    """Send it, by the restored and still stopped tree's sockets.

    Raises:
        RestoreFailed: the kernel has not taken all of it.
    """
    left = dict(waiting)
    for number, pidfd, fd in holders(tree, descriptors, left):
        with borrow(pidfd, fd) as end:
            _send(end, left.pop(number))
    if left:
        why = f"{len(left)} of its connections are not there"
        raise RestoreFailed(Reason.RESTORE_FAILED, why=why)


def _cut(image: bytes, *, has_ended: bool) -> tuple[bytes, Unsent] | None:
    """Split a connection's image from its unsent data; None where there is none."""
    head, body = images.first(image, images.TCP_STREAM_MAGIC)
    stream = images.parse("tcp_stream_entry", head)
    size, sent = stream.unsq_len, stream.inq_len + stream.outq_len - stream.unsq_len
    if not size:
        return None
    if sent < 0 or len(body) < sent + size:
        raise images.damaged("the data of a connection is cut off")
    stream.outq_len -= size
    # The end of a connection counts as one byte.
    stream.outq_seq = (stream.outq_seq - size - has_ended) & _SEQUENCE
    stream.unsq_len = 0
    rest = images.join(images.TCP_STREAM_MAGIC, [images.serialize(stream)])
    return rest + body[:sent], Unsent(bytes(body[sent : sent + size]), has_ended)


def _send(end: socket.socket, what: Unsent) -> None:
    """Send all at once; the socket's buffer and limits are set aside meanwhile."""
    size = end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    lock = end.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)
    limit = end.getsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT)
    end.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _MOST)
    end.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _MOST)
    left = memoryview(what.data)
    try:
        while left:
            left = left[end.send(left, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        if what.has_ended:
            end.shutdown(socket.SHUT_WR)
    except OSError as error:
        why = f"{len(left)} bytes of a connection could not be sent again"
        raise RestoreFailed(
            Reason.RESTORE_FAILED, why=why, detail=str(error)
        ) from error
    finally:
        end.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, limit)
        end.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, size // 2)
        end.setsockopt(socket.SOL_SOCKET, _BUF_LOCK, lock)
