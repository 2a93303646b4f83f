"""The memory of the GPU that the demo and the soak run simulate."""

import os
from pathlib import Path

import pytest

from demo import processes
from demo.simulated_gpu import GpuMemory


def test_memory_is_counted_whatever_else_its_process_has_open(tmp_path, monkeypatch):
    """The listing of a process's files is one of them, and closed when it is read."""
    monkeypatch.setenv(processes.MARK, str(tmp_path))
    lower = Path(os.devnull).open()  # noqa: SIM115 - the listing takes its number
    memory = GpuMemory(20, gpu=1)
    lower.close()
    with pytest.raises(MemoryError, match="GPU 1 has 4 GiB left"):
        GpuMemory(8, gpu=1)
    memory.free()
    GpuMemory(8, gpu=1).free()
