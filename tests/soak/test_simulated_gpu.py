"""The memory of the GPU that the demo and the soak run simulate."""

import os
from pathlib import Path

import pytest

from demo import processes
from demo.agent import DemoAgent
from demo.simulated_gpu import GpuMemory
from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot


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


def test_a_checkpoint_tells_what_its_session_held_of_the_simulated_gpus(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(processes.MARK, str(tmp_path))
    accelerator = DemoAgent().accelerator()
    memory = GpuMemory(20, gpu=1)
    me = Process(os.getpid(), 0, 0, "python", "T", 0, 0)
    mine = Snapshot(me, (me,))
    assert [one.memory for one in accelerator.held(None, mine)] == [20 << 30]
    memory.free()
    assert not accelerator.held(None, mine)
