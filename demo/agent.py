"""The demo's agent on a machine without a GPU: the product's, with simulated GPUs.

:class:`Library` answers for NVIDIA's management library out of what the notebooks hold
(``demo/simulated_gpu.py``). It measures only: there is no driver that could move such
memory, so a nap is refused, and a suspend has nothing to move.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pynvml

from demo import processes
from demo.simulated_gpu import GPUS, NAME, TOTAL, Held, held
from jupyterhub_gpu_reclaim.node import app
from jupyterhub_gpu_reclaim.node.app import AgentApp
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.sampling.gpu import samples_of
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.models import GpuSample
    from jupyterhub_gpu_reclaim.linux.processes import Snapshot
    from jupyterhub_gpu_reclaim.node.requirements import Gpus

#: How busy a GPU is while somebody computes on it.
_BUSY_PERCENT = 90
#: A computation goes on if its last sign is not older: seconds.
_FRESH = 2.0


class Library:
    """NVIDIA's management library, as ``Nvml`` calls it; a handle is a GPU's number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[Held] = []

    def nvmlInit(self) -> None:
        """Succeeds."""

    def nvmlShutdown(self) -> None:
        """Succeeds."""

    def nvmlDeviceGetCount(self) -> int:
        """So many are simulated. A reading begins with it, and is of this moment."""
        self._held = list(held(self._folder))
        return GPUS

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        """The number itself."""
        return number

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        """A simulated GPU's number and zeros."""
        return f"GPU-{gpu:08d}-0000-0000-0000-000000000000"

    def nvmlDeviceGetName(self, gpu: int) -> str:
        """It says everywhere that it is simulated."""
        return NAME

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:
        """Not divided."""
        return [0, 0]

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        """What the notebooks have left of it."""
        used = min(TOTAL, sum(one.bytes for one in self._on(gpu)))
        return SimpleNamespace(total=TOTAL, used=used, free=TOTAL - used)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:
        """Busy while one of its processes computes."""
        late = time.time() - _FRESH
        works = any(one.worked > late for one in self._on(gpu))
        return SimpleNamespace(gpu=_BUSY_PERCENT if works else 0, memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
        """Who holds memory there, once each."""
        memory: dict[int, int] = {}
        for one in self._on(gpu):
            memory[one.pid] = memory.get(one.pid, 0) + one.bytes
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=count)
            for pid, count in memory.items()
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
        """Nobody draws."""
        return []

    nvmlDeviceGetMPSComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses

    def nvmlDeviceGetProcessUtilization(
        self, gpu: int, since: int
    ) -> list[SimpleNamespace]:
        """Who has computed since then, in microseconds."""
        worked = {one.pid for one in self._on(gpu) if one.worked > since / 1e6}
        if not worked:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # as the real one
        return [
            SimpleNamespace(pid=pid, smUtil=_BUSY_PERCENT, memUtil=0) for pid in worked
        ]

    def _on(self, gpu: int) -> list[Held]:
        return [one for one in self._held if one.gpu == gpu]


class SimulatedGpus(Accelerator):
    """No program uses a driver, so only the simulated cards tell who has memory."""

    def held(self, gpus: Gpus | None, snapshot: Snapshot) -> Sequence[GpuSample]:
        del gpus
        tree = {process.pid for process in snapshot.processes}
        return samples_of(self.cards.measure(time.time()), tree) or ()


class DemoAgent(AgentApp):
    """The agent with simulated GPUs."""

    name = "demo-agent"

    def accelerator(self, *_: object) -> Accelerator:
        library = Library(Path(os.environ[processes.MARK]))
        return super().accelerator(SimulatedGpus, Nvml(library, driver=Path("/none")))


def main() -> None:
    """The program's entry point."""
    app.main(DemoAgent)


if __name__ == "__main__":
    main()
