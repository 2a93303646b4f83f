"""Bytes into the memory of another process, many pieces at once.

Called by the copying of a checkpoint's areas. The process is stopped and ours to fill;
whether that is so is the caller's to know.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Buffer

_MOST = 1024  #: IOV_MAX

_libc = ctypes.CDLL(None, use_errno=True)
_writev = _libc.process_vm_writev
_writev.restype = ctypes.c_ssize_t
_writev.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


def poke(
    pid: int,
    data: Buffer,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    addresses: NDArray[np.int64],
) -> None:
    """Write pieces of a buffer to addresses of a process (process_vm_writev(2)).

    Args:
        pid: of the process, as we see it.
        data: contiguous bytes.
        starts: of the pieces in them; every piece lies in the buffer.
        lengths: of the pieces.
        addresses: where each goes.

    Raises:
        StoreError: ``RESTORE_FAILED``, the process is gone or has no memory there that
            it could write to itself.
    """
    whole = np.frombuffer(data, np.uint8)
    if not len(starts) or int((starts + lengths).max()) > len(whole):
        raise StoreError(Reason.CHECKPOINT_DAMAGED, why="a piece is beyond its block")
    local = np.stack([starts + whole.ctypes.data, lengths], 1).astype(np.uint64)
    remote = np.stack([addresses, lengths], 1).astype(np.uint64)
    for at in range(0, len(starts), _MOST):
        ours, theirs = local[at : at + _MOST], remote[at : at + _MOST]
        count = len(ours)
        done = _writev(pid, ours.ctypes.data, count, theirs.ctypes.data, count, 0)
        if done == int(ours[:, 1].sum()):
            continue
        _fail(pid, ctypes.get_errno() if done < 0 else errno.EFAULT)


def _fail(pid: int, number: int) -> NoReturn:
    raise StoreError(
        Reason.RESTORE_FAILED,
        why="a process did not take its memory",
        detail=f"process {pid}: {os.strerror(number)}",
    )
