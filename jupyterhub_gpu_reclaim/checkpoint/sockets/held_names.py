"""Sockets that hold the abstract names of saved sessions, as ``held`` does ports.

Such a name has one owner: nothing can be bound beside it, not even by root. So a holder
is the session's own socket, copied before its end and shut down, or one of ours, and it
is closed just before CRIU binds the name. Who is quicker then is told as the obstacle.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.sockets import inet
from jupyterhub_gpu_reclaim.checkpoint.sockets.abstract_names import Name
from jupyterhub_gpu_reclaim.linux.descriptors import as_socket, copied_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class HeldNames:
    def __init__(self) -> None:
        self._sockets: dict[str, dict[Name, socket.socket]] = {}

    def of(self, checkpoint: str) -> frozenset[Name]:
        return frozenset(self._sockets.get(checkpoint, ()))

    def copy(
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

    def bind(self, checkpoint: str, names: Iterable[Name]) -> None:
        """Hold those names, as far as they are not taken."""
        here = self._sockets.setdefault(checkpoint, {})
        for name in names:
            if name in here:
                continue
            one = socket.socket(socket.AF_UNIX, name.kind)
            try:
                one.bind(name.name)
                here[name] = one
                if name.kind == socket.SOCK_DGRAM:
                    one.shutdown(socket.SHUT_RDWR)
            except OSError:
                one.close()
                here.pop(name, None)

    def close(self, checkpoint: str) -> None:
        for one in self._sockets.pop(checkpoint, {}).values():
            one.close()


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
