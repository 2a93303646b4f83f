"""The pipes between a session's tree and its init: the tree's output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.session_init.session_init import (
    RELAY_READ_FD,
    RELAY_WRITE_FD,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return

#: CRIU's names of these pipes; CRIU has no image of that name.
_IMAGE: Final = "output.json"


class Output(Kind):
    """The pipes that a tree writes its output to, whose reader is its init.

    A return puts the new init's in their place. With ``--relay`` the init has both ends
    of a pipe (``session_init``); without, the tree has inherited the init's own 1
    and 2.
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    def before_dump(self, dump: Dump) -> None:
        self._names = names(dump.init_pid)

    def save(self, dump: Dump) -> None:
        dump.images.replace(_IMAGE, codec.encode(self._names))

    def rewrite(self, back: Return) -> None:
        told = back.images.decoded(_IMAGE, list[str])
        for name, descriptor in open_ends(back.init_pid, told).items():
            back.stack.callback(os.close, descriptor)
            back.ends[name] = descriptor


def _pipe(init_pid: int, end: int) -> str:
    name = procfs.link(init_pid, f"fd/{end}")
    return name if name.startswith("pipe:[") else ""


def _ends(init_pid: int) -> list[int]:
    relay = _pipe(init_pid, RELAY_WRITE_FD)
    if relay and relay == _pipe(init_pid, RELAY_READ_FD):
        return [RELAY_WRITE_FD]
    return [1, 2]


def names(init_pid: int) -> list[str]:
    """CRIU's names of the pipes that a tree shares with its init, output first."""
    found = [_pipe(init_pid, end) for end in _ends(init_pid)]
    return list(dict.fromkeys(filter(None, found)))


def open_ends(init_pid: int, pipes: Iterable[str]) -> dict[str, int]:
    """The new init's ends for those pipes: name → descriptor, for the caller to close.

    A pipe for which the new init has none of its own gets the init's last one: both
    of the session's outputs then come out in one place.
    """
    ends = _ends(init_pid)
    opened = {}
    for index, name in enumerate(pipes):
        end = ends[min(index, len(ends) - 1)]
        path = procfs.PROC / f"{init_pid}/fd/{end}"
        opened[name] = os.open(path, os.O_WRONLY)
    return opened
