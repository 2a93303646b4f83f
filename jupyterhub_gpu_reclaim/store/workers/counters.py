"""Counters in shared memory: a row for each worker, which is its only writer.

They can be read while the workers work.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = 3
_ROW_BYTES = COLUMNS * 8


def make(rows: int) -> tuple[int, NDArray[np.int64]]:
    """A new descriptor of counters, all 0, and the counters."""
    descriptor = os.memfd_create("counters", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, rows * _ROW_BYTES)
    return descriptor, mapped(descriptor)


def mapped(descriptor: int) -> NDArray[np.int64]:
    """Counters of another process; the descriptor may be closed then."""
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    return np.frombuffer(memory, np.int64).reshape(-1, COLUMNS)
