"""What a rehearsal opens files with, where a return would use the user's own.

A save point is rehearsed beside a tree that goes on, and its programs rename and delete
files meanwhile: a temporary file that becomes the whole one, a journal. So the files
are held by name, which opens nothing (O_PATH), while the tree stands (:class:`Names`).
A file that is no longer at its path is then the one that was there.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files.credentials import run_as
from jupyterhub_gpu_reclaim.linux.beneath import open_in_root, open_root
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.checkpoint.files.credentials import Credentials


class Trial(NamedTuple):
    #: An empty folder, open to everybody, where everything is made that a return would
    #: make among the user's files, or write to.
    scratch: int
    #: Files as they stood; None: the tree stands until the rehearsal has ended.
    names: Names | None = None


class Names:
    """Files of a tree by their paths; none are left once it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[bytes, int] = {}

    def take(self, init_pid: int, files_image: bytes, who: Credentials) -> None:
        """Hold every file that has a name; the tree stands.

        Raises:
            OSError: there is no such session.
        """
        entries = images.file_entries(files_image)
        paths = {entry.reg.name for entry in entries if entry.HasField("reg")}
        make_room(len(paths))
        with closing(open_root(f"/proc/{init_pid}/root")) as root, self._lock:
            run_as(who, lambda: self._take(root, paths))

    def _take(self, root: int, paths: Iterable[bytes]) -> None:
        for path in paths:
            with suppress(OSError):
                flags = os.O_PATH | os.O_NOFOLLOW
                self._held[path] = open_in_root(root, path, flags)

    def had_another(self, path: bytes, found: int) -> bool:
        """Whether the file that stood there was another one than this."""
        with self._lock:
            held = self._held.get(path)
            return held is not None and not os.path.sameopenfile(held, found)

    def open(self, path: bytes) -> int:
        """Another descriptor of the file that stood there.

        Raises:
            FileNotFoundError: none is held.
        """
        with self._lock:
            if path not in self._held:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return os.dup(self._held[path])

    def close(self) -> None:
        with self._lock:
            for descriptor in self._held.values():
                os.close(descriptor)
            self._held.clear()


def make_room(count: int) -> None:
    """Let this process have that many more descriptors, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, 4096 + 4 * count))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
