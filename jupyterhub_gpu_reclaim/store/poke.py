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


class Target:
    """Memory of one process that is to be written, piece by piece (process_vm_writev).

    Args:
        pid: of the process, as we see it.
        starts: of the pieces, each in the buffer that it comes from.
        lengths: of the pieces.
        addresses: where each goes.
    """

    def __init__(
        self,
        pid: int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        addresses: NDArray[np.int64],
    ) -> None:
        self._pid = pid
        self._ends = starts + lengths
        self._lengths = lengths
        self._here = np.stack([starts, lengths], 1).astype(np.uint64)
        self._there = np.stack([addresses, lengths], 1).astype(np.uint64)

    def poke(self, data: Buffer, begin: int, end: int) -> None:
        """Write the pieces with those numbers; all of them come from one buffer.

        Raises:
            StoreError: ``RESTORE_FAILED``, the process is gone or has no memory there
                that it could write to itself; or a piece is beyond the buffer.
        """
        whole = np.frombuffer(data, np.uint8)
        if int(self._ends[begin:end].max()) > len(whole):
            why = "a piece is beyond its block"
            raise StoreError(Reason.CHECKPOINT_DAMAGED, why=why)
        here = self._here[begin:end].copy()
        here[:, 0] += np.uint64(whole.ctypes.data)
        for at in range(begin, end, _MOST):
            last = min(at + _MOST, end)
            self._write(here[at - begin : last - begin], at, last)

    def _write(self, here: NDArray[np.uint64], begin: int, end: int) -> None:
        theirs, count = self._there[begin:end], end - begin
        done = _writev(self._pid, here.ctypes.data, count, theirs.ctypes.data, count, 0)
        if done != int(self._lengths[begin:end].sum()):
            _fail(self._pid, ctypes.get_errno() if done < 0 else errno.EFAULT)


def _fail(pid: int, number: int) -> NoReturn:
    raise StoreError(
        Reason.RESTORE_FAILED,
        why="a process did not take its memory",
        detail=f"process {pid}: {os.strerror(number)}",
    )
