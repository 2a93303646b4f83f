"""GPU memory to hold in a notebook of the demo, on a machine without a GPU.

There is no GPU behind it, and nothing can be computed with it: memory that a notebook
holds is a file of that size, without contents, that its kernel has open. The demo's
agent (``demo/agent.py``) says of two simulated GPUs who holds what, in place of
NVIDIA's library; from there on all is the product's own. A session that is suspended
has no processes, so it holds nothing; one that is back has its files open again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from demo import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
#: Of each simulated GPU: bytes of memory, and its name on every page.
TOTAL = 24 * GIB
NAME = "Simulated GPU"
#: How many of them a demo has.
GPUS = 2
#: Seconds between two signs that a computation goes on.
_PULSE = 0.2


class Held(NamedTuple):
    """Memory of one process on one simulated GPU."""

    gpu: int
    pid: int
    bytes: int
    worked: float  #: when a computation was last at it, seconds since the epoch


class GpuMemory:
    """Simulated memory, held until nothing refers to it or its process has ended.

    Args:
        gib: how much, in GiB.
        gpu: on which of the simulated GPUs, 0 or 1.

    Raises:
        MemoryError: that GPU does not have so much left.
    """

    def __init__(self, gib: float, gpu: int = 0) -> None:
        folder = Path(os.environ[processes.MARK])
        left = TOTAL - sum(one.bytes for one in held(folder) if one.gpu == gpu)
        if gib * GIB > left:
            raise MemoryError(f"{NAME} {gpu} has {left / GIB:.0f} GiB left.")
        path = folder_of(folder, gpu)
        path.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - held open
            dir=path, delete=False
        )
        self._file.truncate(int(gib * GIB))
        os.utime(self._file.fileno(), (0, 0))  # nothing was computed yet

    def compute(self, seconds: float) -> None:
        """Let the GPU look busy for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.utime(self._file.fileno())
            time.sleep(_PULSE)

    def free(self) -> None:
        """Give the memory back."""
        self._file.close()


def held(folder: Path) -> Iterator[Held]:
    """What the processes of the stack in that folder hold of its simulated GPUs."""
    for pid in (*processes.of(folder), os.getpid()):
        for descriptor in _descriptors(pid):
            with contextlib.suppress(OSError):  # closed meanwhile
                path = descriptor.readlink()
                if path.parent.parent == folder_of(folder, 0).parent:
                    state = descriptor.stat()
                    gpu = int(path.parent.name)
                    yield Held(gpu, pid, state.st_size, state.st_mtime)


def _descriptors(pid: int) -> list[Path]:
    """Of a process, as files; none if it has ended. Its listing of itself is in it."""
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def folder_of(folder: Path, gpu: int) -> Path:
    """Where the files lie that stand for the memory of one simulated GPU."""
    return folder / "simulated-gpus" / str(gpu)
