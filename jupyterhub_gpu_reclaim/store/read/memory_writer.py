"""Writes bytes into the memory of another process, many pieces at once.

The caller must ensure that the process is stopped and that these areas may be filled.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Buffer

_MOST = 1024  #: IOV_MAX
_VECTOR_BYTES = 16  #: of a struct iovec

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
    """Memory of one process that is to be written, block by block (process_vm_writev).

    Some thousand blocks are written in a second: what can be made at once for all of
    them is made here.

    Args:
        pid: of the process, as we see it.
        starts: of the pieces, each in the block that it comes from.
        lengths: of the pieces.
        addresses: where each goes.
        firsts: the first piece of each block, in rising order, the first of them 0.
    """

    def __init__(
        self,
        pid: int,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        addresses: NDArray[np.int64],
        firsts: NDArray[np.int64],
    ) -> None:
        self._pid = pid
        self._cuts = [*firsts.tolist(), len(starts)]
        self._needs = np.maximum.reduceat(starts + lengths, firsts).tolist()
        self._sizes = np.add.reduceat(lengths, firsts).tolist()
        self._from = np.stack([starts, lengths], 1).astype(np.uint64)
        self._to = np.stack([addresses, lengths], 1).astype(np.uint64)
        self._to_at: int = self._to.ctypes.data
        #: What is given to the kernel: as above, with addresses of ours.
        self._given = np.empty((_MOST, 2), np.uint64)
        self._given_at: int = self._given.ctypes.data

    def poke(self, number: int, data: Buffer) -> int:
        """Write the pieces of a block.

        Args:
            number: of the block, among those of ``firsts``.
            data: all of it.

        Returns:
            Their bytes.

        Raises:
            StoreError: ``RESTORE_FAILED``, the process is gone or has no memory there
                that it could write to itself; or a piece is beyond the block.
        """
        if self._needs[number] > len(data):
            why = "a piece is beyond its block"
            raise StoreError(Reason.CHECKPOINT_DAMAGED, why=why)
        base = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        size: int = self._sizes[number]
        done = 0
        begin, end = self._cuts[number : number + 2]
        for at in range(begin, end, _MOST):
            count = min(end - at, _MOST)
            given = self._given[:count]
            given[:] = self._from[at : at + count]
            given[:, 0] += np.uint64(base)
            there = self._to_at + at * _VECTOR_BYTES
            wrote = _writev(self._pid, self._given_at, count, there, count, 0)
            if wrote < 0:
                _fail(self._pid, ctypes.get_errno())
            done += wrote
        if done != size:
            _fail(self._pid, errno.EFAULT)
        return size


def _fail(pid: int, number: int) -> NoReturn:
    raise StoreError(
        Reason.RESTORE_FAILED,
        why="a process did not take its memory",
        detail=f"process {pid}: {os.strerror(number)}",
    )
