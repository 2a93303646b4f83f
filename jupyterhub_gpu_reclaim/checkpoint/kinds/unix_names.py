"""UNIX sockets with a name in the file system: made as their task, not as root."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import socket
import stat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.files.credentials import again, run_as
from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.checkpoint.sockets import abstract_names
from jupyterhub_gpu_reclaim.common.findings import refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.beneath import (
    found_at,
    open_in_root,
    open_made_folder,
)
from jupyterhub_gpu_reclaim.linux.descriptors import closing, file_of_socket
from jupyterhub_gpu_reclaim.linux.sock_diag import TcpState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

#: CRIU's mark of a socket that is not the tree's, but a datagram server's outside.
_EXTERNAL: Final = 1
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_ELSEWHERE: Final = b"/tmp"


class Named(NamedTuple):
    kind: int
    folder: bytes  #: what a relative name begins at; empty for an absolute one
    name: bytes  #: abstract, or empty, where it is only connected to one with a path
    mode: int
    is_deleted: bool
    backlog: int  #: -1 where it does not listen
    peer: bytes  #: where it sends to; empty for nowhere
    server: int  #: the entry of the one that it sends to, if that is made here; or -1
    flags: int
    buffers: tuple[int, int]  #: bytes that it sends and receives at once


class AbstractNames(Kind):
    """Abstract names of UNIX sockets that are those of a place."""

    def rewrite(self, back: Return) -> None:
        abstract_names.renew(back.saved.entries.values(), back.init_pid)


class NamedSockets(Kind):
    """UNIX sockets with a name in the file system.

    They are handed over like files. CRIU would remove what has the name, bind there,
    change its owner and mode, and connect to it, all by path and as root: a swapped
    folder turns each of these against any file or server of the machine. So such a
    socket is made here with the rights of its holder, and the images that CRIU gets
    name no such path any more.

    A connection that its server has not accepted cannot be saved, as for TCP: its
    client finds it cut. Datagrams that wait in one are sent again (``socket_state``).
    """

    def rewrite(self, back: Return) -> None:
        wanted, place = take_named(back.saved.entries), back.place
        if back.trial is not None:
            for number, one in wanted.items():
                who = back.saved.holder(number)
                run_as(who, functools.partial(_refuse_closed, one, back.root))
            wanted = _moved(wanted)
            place = place._replace(root=back.trial.scratch)
        for number, one in wanted.items():
            who = back.saved.holder(number)
            end = run_as(who, functools.partial(_make, one, place.root), place)
            back.hand_over(number, end.detach())
        for number, one in wanted.items():
            with _copy(back, number) as end:
                if one.server in wanted:
                    # As root, whatever has become of its name; not one that is
                    # connected to a third.
                    server = _copy(back, one.server)
                    with (
                        server,
                        contextlib.suppress(OSError),
                        closing(file_of_socket(server.fileno())) as file,
                    ):
                        end.connect(again(file))
                else:
                    who = back.saved.holder(number)
                    run_as(who, functools.partial(_connect, end, one, place.root))
                _finish(end, one, place.root)


def _copy(back: Return, number: int) -> socket.socket:
    return socket.socket(fileno=os.dup(back.descriptors[number]))


def take_named(entries: Mapping[int, Any]) -> dict[int, Named]:
    """Take the names out of ``files.img``; what is to be made instead, by its entry."""
    sockets = [one.usk for one in entries.values() if one.HasField("usk")]
    named = {one.ino: one for one in sockets if _is_named(one)}
    # Abstract names outside: CRIU would fail on one that has gone meanwhile.
    beyond = {
        one.ino: one.name
        for one in sockets
        if one.uflags & _EXTERNAL and one.ino not in named
    }
    paths = beyond | {number: _path(one) for number, one in named.items()}
    found = {}
    for one in sockets:
        if one.uflags & _EXTERNAL:
            continue
        is_datagram, is_named = one.type == socket.SOCK_DGRAM, one.ino in named
        if one.peer in beyond and one.name and not is_named:
            # Others may send to it by its own abstract name, so it stays CRIU's.
            one.state, one.peer = TcpState.CLOSE, 0
        sends = is_datagram and one.peer in paths
        if sends or (is_named and (is_datagram or one.state != TcpState.ESTABLISHED)):
            found[one.id] = _named(one, paths, named)
        elif one.peer in named and named[one.peer].state == TcpState.LISTEN:
            one.state, one.peer = TcpState.CLOSE, 0
    for one in named.values():
        one.name = b""
        for field in ("name_dir", "file_perms", "deleted"):
            one.ClearField(field)
    return found


def _is_named(one: Any) -> bool:
    return bool(one.name) and not one.name.startswith(b"\0")


def _path(one: Any) -> bytes:
    name: bytes = one.name.rstrip(b"\0")
    if name.startswith(b"/"):
        return name
    folder: bytes = one.name_dir
    return folder.rstrip(b"/") + b"/" + name


def _named(one: Any, paths: Mapping[int, bytes], named: Mapping[int, Any]) -> Named:
    server = named.get(one.peer)
    if server is not None and server.uflags & _EXTERNAL:
        server = None
    return Named(
        kind=one.type,
        folder=one.name_dir,
        name=one.name.rstrip(b"\0") if _is_named(one) else one.name,
        mode=stat.S_IMODE(one.file_perms.mode) if one.HasField("file_perms") else 0o600,
        is_deleted=one.deleted,
        backlog=one.backlog if one.state == TcpState.LISTEN else -1,
        peer=paths.get(one.peer, b""),
        server=-1 if server is None else server.id,
        flags=one.flags,
        buffers=(one.opts.so_sndbuf, one.opts.so_rcvbuf),
    )


def _refuse_closed(one: Named, root: int) -> None:
    """Judge a name without making it; called inside of ``run_as``.

    Raises:
        RestoreFailed: its user may not bind there now.
    """
    if not one.name or one.is_deleted or _is_abstract(one):
        return
    try:
        with found_at(root, _parent(one), os.O_PATH | os.O_DIRECTORY) as folder:
            open_to_it = os.access(again(folder), os.W_OK | os.X_OK, effective_ids=True)
    except (FileNotFoundError, NotADirectoryError):
        return  # a return makes it again, or does without the name
    except OSError as error:
        why = error.strerror or "it cannot be bound"
        raise refused(Reason.FILE_DENIED, one.name, why) from None
    if not open_to_it:
        raise refused(Reason.FILE_DENIED, one.name, os.strerror(errno.EACCES))


def _moved(wanted: Mapping[int, Named]) -> dict[int, Named]:
    """The same sockets with names in an empty folder; they send to none outside.

    What is outside would hear of a trial. Abstract names stay.
    """
    return {
        number: one._replace(folder=b"", name=b"/%d" % number, peer=b"")
        if one.name and not _is_abstract(one)
        else one._replace(peer=b"")
        for number, one in wanted.items()
    }


def _make(one: Named, root: int) -> socket.socket:
    """Make a socket, bound and listening; called inside of ``run_as`` with the root.

    Raises:
        RestoreFailed: its user may not bind there now.
    """
    made = socket.socket(socket.AF_UNIX, one.kind)
    try:
        if one.name:
            _bind(made, one, root)
        if one.backlog >= 0:
            made.listen(one.backlog)
    except OSError as error:
        made.close()
        why = error.strerror or "it cannot be bound"
        if error.errno == errno.EADDRINUSE:
            why = "another file has its name"
        raise refused(Reason.FILE_DENIED, one.name, why) from None
    made.setblocking(not one.flags & os.O_NONBLOCK)
    return made


def _connect(made: socket.socket, one: Named, root: int) -> None:
    """Send to whom it sent; called inside of ``run_as``, in our own root.

    A server that is gone is none: the next message says so, as if it had ended.
    """
    if not one.peer:
        return
    with contextlib.suppress(OSError):
        if one.peer.startswith(b"\0"):
            made.connect(one.peer)  # where the socket is: in the session's network
            return
        with found_at(root, one.peer) as name:
            made.connect(again(name))


def _finish(made: socket.socket, one: Named, root: int) -> None:
    """As root, set a socket's buffer sizes and check that it is bound where it should.

    Raises:
        RestoreFailed: the name led to another place (``file_swapped``).
    """
    for option, size in zip((_SNDBUFFORCE, _RCVBUFFORCE), one.buffers, strict=True):
        made.setsockopt(socket.SOL_SOCKET, option, size // 2)  # Linux doubles it
    if not one.name or one.is_deleted or _is_abstract(one):
        return
    try:
        bound = file_of_socket(made.fileno())
    except OSError:
        raise refused(Reason.FILE_SWAPPED, one.name) from None
    with closing(bound):
        is_same = not os.fstat(bound).st_nlink  # its folder is gone
        folder = one.folder.rstrip(b"/") + b"/" if one.folder else b""
        with contextlib.suppress(OSError), found_at(root, folder + one.name) as name:
            is_same = is_same or os.path.sameopenfile(bound, name)
    if not is_same:
        raise refused(Reason.FILE_SWAPPED, one.name)


def _bind(made: socket.socket, one: Named, root: int) -> None:
    if _is_abstract(one):
        made.bind(one.name)
        return
    name = one.name.rpartition(b"/")[2]
    start, where = one.folder or b"/", _parent(one)
    folder = None if one.is_deleted else _make_folder(root, where)
    if folder is None:
        _bind_deleted(made, where, root)
        return
    os.umask(~one.mode & 0o777)  # this thread's own
    with closing(folder), contextlib.suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISSOCK(there.st_mode):
            os.unlink(name, dir_fd=folder)
    if not one.name.startswith(b"/"):
        with found_at(root, start, os.O_PATH | os.O_DIRECTORY) as folder:
            os.fchdir(folder)
    # By the very name that it had, which is what its clients are told.
    made.bind(one.name)


def _is_abstract(one: Named) -> bool:
    return one.name.startswith(b"\0")


def _parent(one: Named) -> bytes:
    """The folder of a name in the file system."""
    start = b"" if one.name.startswith(b"/") else one.folder.rstrip(b"/") + b"/"
    return (start + one.name).rpartition(b"/")[0] or b"/"


def _make_folder(root: int, path: bytes) -> int | None:
    """Open a folder, made again if it was removed; None where it cannot be."""
    flags = os.O_PATH | os.O_DIRECTORY
    with contextlib.suppress(NotADirectoryError, FileNotFoundError):
        return open_in_root(root, path, flags)
    with contextlib.suppress(OSError):
        return open_made_folder(root, path, flags, 0o700)
    return None


def _bind_deleted(made: socket.socket, where: bytes, root: int) -> None:
    """Bind to any name and delete it: the socket cannot be reached by its name."""
    for place in (where, _ELSEWHERE):
        name = b".reclaim-" + secrets.token_hex(8).encode()
        try:
            with found_at(root, place, os.O_PATH | os.O_DIRECTORY) as folder:
                os.fchdir(folder)
            os.umask(0o777)
            made.bind(name)
        except OSError:
            continue
        os.unlink(name)  # noqa: PTH108
        return
    raise PermissionError(13, "no folder takes it")
