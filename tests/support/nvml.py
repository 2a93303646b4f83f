"""NVIDIA's library as it answered on an H200 (driver 580.159.04), and its faults."""

from types import SimpleNamespace

import pynvml

IDLE_PID, BUSY_PID = 452, 625
UUID = "e27adf4b65b88824c6b259c163127b06"


class NoCards:
    """Stands for ``Nvml`` on a machine without a GPU."""

    def measure(self, since: float) -> list:
        del since
        return []


def process(pid: int, memory: int | None):
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def measured(pid: int, sm: int, memory: int):
    return SimpleNamespace(pid=pid, smUtil=sm, memUtil=memory)


class Recorded:
    """One H200 with an idle process and one that multiplies matrices."""

    def nvmlInit(self) -> None:  # noqa: N802 - the library's own names
        """Succeeds."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Succeeds."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetMemoryInfo(self, handle: int):  # noqa: N802
        return SimpleNamespace(total=150754820096, free=148133904384, used=2620915712)

    def nvmlDeviceGetUtilizationRates(self, handle: int):  # noqa: N802
        return SimpleNamespace(gpu=100, memory=24)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        return [0, 0]

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return "GPU-e27adf4b-65b8-8824-c6b2-59c163127b06"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int):  # noqa: N802
        return [process(IDLE_PID, 910163968), process(BUSY_PID, 1050673152)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int):  # noqa: N802
        return []

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int):  # noqa: N802
        return []

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int):  # noqa: N802
        return [measured(BUSY_PID, 86, 21), measured(IDLE_PID, 0, 0)]


class SilentAboutIdle(Recorded):
    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int):  # noqa: N802
        return [measured(BUSY_PID, 86, 21)]


class NoMeasurement(Recorded):
    """Has measured nobody, while the card works for somebody."""

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int):  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


class IdleCard(NoMeasurement):
    def nvmlDeviceGetUtilizationRates(self, handle: int):  # noqa: N802
        return SimpleNamespace(gpu=0, memory=0)


class NotSupported(Recorded):
    """A card that tells the memory of nobody, and no use."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int):  # noqa: N802
        return [process(IDLE_PID, None)]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int):  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetUtilizationRates(self, handle: int):  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class LostCard(Recorded):
    """Two cards, of which the second has fallen off the bus."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        if number == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return number


class LostInTheMiddle(Recorded):
    """Falls off the bus between two questions."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int):  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


class VanishedPid(Recorded):
    """Has measured a process that has ended since."""

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int):  # noqa: N802
        return [measured(4_000_000, 50, 1), measured(BUSY_PID, 86, 21)]


class Divided(NotSupported):
    """A card in MIG mode, with a process on each of two instances."""

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        return [1, 1]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int):  # noqa: N802
        return [process(IDLE_PID, 5), process(BUSY_PID, 7)]


class TwoCards(Recorded):
    """The same two processes on a second card, where the other one works."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return super().nvmlDeviceGetUUID(handle)[:-1] + str(6 + handle)


class Shared(Recorded):
    """A card under MPS: one of two clients is not in the list of the others."""

    server = 4711

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int):  # noqa: N802
        return [process(self.server, 30 << 20), process(IDLE_PID, 910163968)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int):  # noqa: N802
        return [process(IDLE_PID, 910163968), process(BUSY_PID, 1050673152)]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int):  # noqa: N802
        return [measured(self.server, 86, 21)]


class SharedIdle(Shared):
    def nvmlDeviceGetUtilizationRates(self, handle: int):  # noqa: N802
        return SimpleNamespace(gpu=0, memory=0)


class NoLibrary(Recorded):
    """A container without NVIDIA's library."""

    def nvmlInit(self) -> None:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


class NoDriver(Recorded):
    def nvmlInit(self) -> None:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


class BrokenDriver(Recorded):
    """A driver that was replaced under a running machine."""

    def nvmlInit(self) -> None:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
