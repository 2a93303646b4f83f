"""Makes descriptors that lead to one folder or file of ours and nowhere else.

A descriptor of an ordinary folder is a way into the whole file system that it is part
of: ``/proc/<pid>/fd/N/../..``. So CRIU inside a session gets a mount of its own that is
attached to nothing (open_tree(2), Linux 5.2): above its root there is no parent, so
``..`` stays there. It goes when its last descriptor is closed.

What CRIU only reads or runs is read-only there (mount_setattr(2), Linux 5.12), so that
no descriptor and no link of ``/proc/<pid>`` gives write access to our own copy.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from pathlib import Path

# The same numbers on every architecture (<asm-generic/unistd.h>).
_OPEN_TREE, _MOUNT_SETATTR = 428, 442
# <linux/mount.h>, <linux/fcntl.h>, <linux/fs.h>
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 1
_RDONLY, _NOSUID, _NODEV = 0x1, 0x2, 0x4
_MS_PRIVATE: Final = 1 << 18
_ATTRIBUTES: Final = struct.Struct("=QQQQ")  # set, clear, propagation, user namespace

_libc = ctypes.CDLL(None, use_errno=True)


def open_detached(path: Path, *, read_only: bool) -> int:
    """A descriptor (O_PATH) of a detached mount of that folder or file alone.

    Args:
        path: what to lead to; mounts below a folder are left out.
        read_only: nothing can be written through it.

    Raises:
        Refused: this kernel or container does not allow it (``criu_unusable``).
        OSError: there is no such path.
    """
    descriptor = _call(
        _OPEN_TREE,
        _AT_FDCWD,
        ctypes.c_char_p(os.fsencode(path)),
        _OPEN_TREE_CLONE | os.O_CLOEXEC,
    )
    flags = _NOSUID | _NODEV | (_RDONLY if read_only else 0)
    try:
        _call(
            _MOUNT_SETATTR,
            descriptor,
            ctypes.c_char_p(b""),
            _AT_EMPTY_PATH,
            ctypes.c_char_p(_ATTRIBUTES.pack(flags, 0, _MS_PRIVATE, 0)),
            _ATTRIBUTES.size,
        )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        error = OSError(code, os.strerror(code))
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error
        why = f"the agent may not make a detached mount ({error.strerror})"
        raise Refused(Reason.CRIU_UNUSABLE, why=why) from None
    return result
