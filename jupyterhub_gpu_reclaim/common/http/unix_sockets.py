"""UNIX sockets of our own programs, protected from other users.

A socket has mode 0600. Anyone who may write to its folder could put another one in its
place, so a caller checks whose it is before anything is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # struct ucred
_BACKLOG = 256


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """The address of that socket: a path may be longer than the 107 bytes of one.

    Raises:
        OSError: there is no such folder.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listening(path: Path) -> socket.socket:
    """Listen there, replacing a former listener.

    Raises:
        OSError: it cannot be made.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        os.fchmod(made.fileno(), 0o600)  # the file's from its first moment on
        with address(path) as there:
            made.bind(there)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def refuse_strangers(connected: socket.socket) -> None:
    """Make sure that the listener is root, or runs as we do.

    Raises:
        PermissionError: it is another user.
    """
    size = _CREDENTIALS.size
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = _CREDENTIALS.unpack(peer)
    if uid not in {0, os.geteuid()}:
        raise PermissionError(f"user id {uid} listens there")
