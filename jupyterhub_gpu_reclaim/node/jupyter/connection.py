"""A kernel's connection file. Its user may write it: what does not fit is ignored."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.linux.beneath import open_file_in_root, root_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_FILE_BYTES = 64 * 1024
#: For one of many, where a user who keeps us waiting must not hold up the others.
_LOOK_SECONDS = 0.2


class ConnectionFile(Value, frozen=True, kw_only=True):
    shell_port: int
    control_port: int = 0
    stdin_port: int = 0
    iopub_port: int = 0
    hb_port: int = 0
    key: str = ""
    signature_scheme: str = "hmac-sha256"
    transport: str = "tcp"


_NAMED_FILE = re.compile(rb"(?:^|=)(/[^\0]*/kernel-[^/\0]+\.json)$")


def _path_in(pid: int, seconds: float = procfs.SECONDS) -> bytes | None:
    """The connection file a process was started with; OSError as of a read in /proc."""
    for word in procfs.words(pid, "cmdline", seconds=seconds):
        match = _NAMED_FILE.search(word)
        if match is not None:
            return match[1]
    return None


def is_started_as_kernel(pid: int) -> bool:
    """Whether its command line has such a file; OSError as of a read in /proc."""
    return _path_in(pid, seconds=_LOOK_SECONDS) is not None


def find_connection(init_pid: int, pid: int) -> ConnectionFile | None:
    """The connection of the kernel that a process was started as, if it is one."""
    # Its path is looked up in the root of the session's init.
    try:
        path = _path_in(pid)
    except OSError:
        return None
    return None if path is None else _read_connection(init_pid, path)


def find_connections(
    init_pid: int, pids: Iterable[int], kernels: Iterable[str]
) -> dict[str, ConnectionFile]:
    """Connections of kernels by their ids, if found; each process is looked at once."""
    wanted, found = {*kernels}, dict[str, ConnectionFile]()
    for pid in pids:
        try:
            path = _path_in(pid)
        except TimeoutError:
            break  # this user's programs keep us waiting: no favour for them
        except OSError:
            continue
        name = os.fsdecode(path or b"")[:-5].rpartition("/kernel-")[2]
        if path is not None and name in wanted:
            wanted.remove(name)
            if (one := _read_connection(init_pid, path)) is not None:
                found[name] = one
    return found


def _read_connection(init_pid: int, path: bytes) -> ConnectionFile | None:
    try:
        with root_of(init_pid) as root:
            descriptor = open_file_in_root(root, path)
        with os.fdopen(descriptor, "rb") as file:
            found = codec.decode(file.read(_MAX_FILE_BYTES), ConnectionFile)
    except (OSError, BadRequest):
        return None
    usable = found.transport == "tcp" and 0 < found.shell_port < 65536
    return found if usable else None
