"""Data that a session's own connections had not sent yet."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.sockets.datagrams import enlarged
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import borrow_from
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

#: State of a connection without the end (FIN) that it has sent.
_WITHOUT_END: Final = {
    int(TcpState.FIN_WAIT1): int(TcpState.ESTABLISHED),
    int(TcpState.CLOSING): int(TcpState.CLOSE_WAIT),
    int(TcpState.LAST_ACK): int(TcpState.CLOSE_WAIT),
}
#: Of CRIU's ``sk_shutdown``.
_READ: Final = 1
_SEQUENCE: Final = (1 << 32) - 1
_NOTSENT_LOWAT: Final = 25
_MOST: Final = (1 << 30) - 1


class Unsent(NamedTuple):
    data: bytes
    has_ended: bool  #: nothing follows


class UnsentData(Kind):
    """Data that a TCP connection had not sent yet.

    It does not fit into the receiver's window, and waits at the sender. CRIU gives it
    back as soon as it has made the sender's end, when there is no other end yet: the
    kernel answers with a reset, and the restore fails. (CRIU's lock on the network
    would be one for the whole machine.) So that part, and an end of the connection
    (shutdown) behind it, is taken out of the images, and sent when both ends are there,
    by the ordinary way: the tree is stopped, the kernel moves what fits.
    """

    def __init__(self) -> None:
        self._unsent: dict[int, Unsent] = {}  #: by entry

    def rewrite(self, back: Return) -> None:
        held = back.saved.held()
        for entry in back.saved.entries.values():
            isk = entry.isk
            if (
                entry.type != images.TYPE_INETSK
                or isk.proto != socket.IPPROTO_TCP
                or isk.state in {TcpState.CLOSE, TcpState.LISTEN}
                or entry.id not in held  # such as a socket in a message under way
            ):
                continue
            name = f"tcp-stream-{isk.ino:x}.img"
            image = back.images.read(name)
            state = _WITHOUT_END.get(isk.state, isk.state)
            cut = image and _cut(image, has_ended=state != isk.state)
            if not cut:
                continue
            back.images.replace(name, cut[0])
            self._unsent[entry.id] = cut[1]
            if state != isk.state:
                isk.state = state
                reads_no_more = isk.shutdown & _READ
                isk.ClearField("shutdown")
                if reads_no_more:
                    isk.shutdown = _READ

    def after_restore(self, back: Return) -> None:
        left = dict(self._unsent)
        for number, pid, fd in back.holders(left):
            with borrow_from(pid, fd) as end:
                _send(end, left.pop(number))
        if left:
            why = f"{len(left)} of its connections are not there"
            raise RestoreFailed(Reason.RESTORE_FAILED, why=why)


def _cut(image: bytes, *, has_ended: bool) -> tuple[bytes, Unsent] | None:
    entries = images.Entries([image], images.TCP_STREAM_MAGIC)
    stream, body = entries.message("tcp_stream_entry"), entries.read(len(image))
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
    limit = end.getsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT)
    end.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _MOST)
    left = memoryview(what.data)
    try:
        with enlarged(end):
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
