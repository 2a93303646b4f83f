"""A kernel's connection file: its ports, and the key that signs its messages.

The file's path stands in the command line of the kernel. The user has written both, so
neither is trusted: what does not fit is as good as not there.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import open_file_in_root, open_root

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_FILE_BYTES = 64 * 1024
#: For one of many, where a user who keeps us waiting must not hold up the others.
_LOOK_SECONDS = 0.2


class ConnectionFile(Value, frozen=True, kw_only=True):
    """A kernel's connection file, as far as we need it."""

    shell_port: int
    control_port: int = 0
    stdin_port: int = 0
    iopub_port: int = 0
    hb_port: int = 0
    key: str = ""
    signature_scheme: str = "hmac-sha256"
    transport: str = "tcp"
    curve_publickey: str | None = None  #: its messages are not in plain


def _path_in(
    pid: int, kernel: str | None = None, seconds: float = procfs.SECONDS
) -> bytes | None:
    """The path of a connection file that a process was started with.

    Raises:
        OSError: it has ended, or keeps its reader waiting (``TimeoutError``).
    """
    name = rb"[^/\0]+" if kernel is None else re.escape(os.fsencode(kernel))
    pattern = re.compile(rb"(?:^|=)(/[^\0]*/kernel-" + name + rb"\.json)$")
    for word in procfs.words(pid, "cmdline", seconds=seconds):
        match = pattern.search(word)
        if match is not None:
            return match[1]
    return None


def kernel_of(pid: int) -> str | None:
    """The id of the kernel that a process was started as; None: it is none.

    Raises:
        OSError: it has ended, or keeps its reader waiting (``TimeoutError``).
    """
    path = _path_in(pid, seconds=_LOOK_SECONDS)
    return None if path is None else os.fsdecode(path)[:-5].rpartition("/kernel-")[2]


def may_be_kernel(pid: int) -> bool:
    """Whether a process was started as a Jupyter kernel is; True if it hides that."""
    try:
        return _path_in(pid) is not None
    except TimeoutError:
        return True
    except OSError:
        return False


def find_connection(
    init_pid: int, pids: Iterable[int], kernel: str | None = None
) -> ConnectionFile | None:
    """The connection of the kernel with that id; None where it is not to be found.

    Args:
        init_pid: of the session, whose root the path is looked up in.
        pids: host pids of the tree; one of them was started with the file's path.
        kernel: the kernel's id, as the server reports it; None for any.
    """
    for pid in pids:
        try:
            path = _path_in(pid, kernel)
        except TimeoutError:
            return None  # this user's programs keep us waiting: no favour for them
        except OSError:
            continue
        if path is not None:
            return _read_connection(init_pid, path)
    return None


def _read_connection(init_pid: int, path: bytes) -> ConnectionFile | None:
    try:
        root = open_root(f"/proc/{init_pid}/root")
        try:
            descriptor = open_file_in_root(root, path)
        finally:
            os.close(root)
        with os.fdopen(descriptor, "rb") as file:
            found = codec.decode(file.read(_MAX_FILE_BYTES), ConnectionFile)
    except (OSError, BadRequest):
        return None
    usable = found.transport == "tcp" and 0 < found.shell_port < 65536
    return found if usable else None
