"""Asks NVIDIA's management library what every GPU and every process on it does.

Called by the agent for samples, and before a restore for the memory that is free. It is
the only importer of ``pynvml``. Looking costs the cards nothing: no context is made and
no work is queued. What a card does not tell is ``None``, never zero (law 5).

A library that hangs (a card that fell off the bus) hangs one thread, once: while a look
is under way every other one answers "not known" at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pynvml

from jupyterhub_gpu_reclaim.metrics.gpu import CardUse, ProcessUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: What says that this machine has no GPU, rather than one that does not answer.
_NO_GPU: Final = (
    pynvml.NVMLError_LibraryNotFound,
    pynvml.NVMLError_DriverNotLoaded,
)
_NO_INSTANCE: Final = 0xFFFFFFFF


class Nvml:
    """The library, opened when it is first needed.

    Args:
        library: ``pynvml``, or what a test has recorded of it.
    """

    def __init__(self, library: Any = pynvml) -> None:
        self._library = library
        self._looking = threading.Lock()
        self._open = False

    def look(self, since: float) -> list[CardUse] | None:
        """Every card; empty where there is none, None where nobody knows.

        Args:
            since: seconds since the epoch; use is told as a mean from then to now.
        """
        if not self._looking.acquire(blocking=False):
            return None
        try:
            return list(self._cards(since))
        except _NO_GPU:
            return []
        except pynvml.NVMLError as error:
            _log.warning("- the GPUs do not answer: %s", error)
            self._open = False
            return None
        finally:
            self._looking.release()

    def close(self) -> None:
        """Close the library."""
        if self._open:
            with contextlib.suppress(pynvml.NVMLError):
                self._library.nvmlShutdown()

    def _cards(self, since: float) -> Iterator[CardUse]:
        if not self._open:
            self._library.nvmlInit()
            self._open = True
        for number in range(self._library.nvmlDeviceGetCount()):
            try:
                handle = self._library.nvmlDeviceGetHandleByIndex(number)
            except pynvml.NVMLError as error:
                _log.warning("- GPU %d does not answer: %s", number, error)
                yield CardUse()
                continue
            yield self._card(handle, since)

    def _card(self, handle: Any, since: float) -> CardUse:
        library = self._library
        memory = _asked(lambda: library.nvmlDeviceGetMemoryInfo(handle))
        rates = _asked(lambda: library.nvmlDeviceGetUtilizationRates(handle))
        mode = _asked(lambda: library.nvmlDeviceGetMigMode(handle)[0])
        return CardUse(
            uuid=_uuid(_asked(lambda: library.nvmlDeviceGetUUID(handle)) or ""),
            name=_asked(lambda: library.nvmlDeviceGetName(handle)) or "",
            total=memory.total if memory else None,
            free=memory.free if memory else None,
            busy_percent=float(rates.gpu) if rates else None,
            # A card that cannot be divided is not.
            divided=bool(mode),
            processes=self._processes(handle, since, rates.gpu if rates else None),
        )

    def _processes(
        self, handle: Any, since: float, busy: int | None
    ) -> list[ProcessUse] | None:
        library = self._library
        compute = _asked(lambda: library.nvmlDeviceGetComputeRunningProcesses(handle))
        if compute is None:
            return None
        graphics = _asked(lambda: library.nvmlDeviceGetGraphicsRunningProcesses(handle))
        used = self._used(handle, since, busy)
        found = {process.pid: process for process in (*(graphics or ()), *compute)}
        return [
            ProcessUse(
                pid=pid,
                memory=process.usedGpuMemory,
                sm_percent=None if used is None else used.get(pid, _IDLE)[0],
                memory_percent=None if used is None else used.get(pid, _IDLE)[1],
                instance=_instance(process.gpuInstanceId),
            )
            for pid, process in sorted(found.items())
        ]

    def _used(
        self, handle: Any, since: float, busy: int | None
    ) -> dict[int, tuple[float, float]] | None:
        """Utilisation by pid; who is left out did nothing. None where not known.

        The library answers "not found" when it has no measurement at all. That is
        idleness only when the card as a whole was idle, too.
        """
        library = self._library
        try:
            samples = library.nvmlDeviceGetProcessUtilization(
                handle, max(0, int(since * 1e6))
            )
        except pynvml.NVMLError_NotFound:
            return {} if busy == 0 else None
        except pynvml.NVMLError:
            return None
        return {
            sample.pid: (float(sample.smUtil), float(sample.memUtil))
            for sample in samples
        }


_IDLE: Final = (0.0, 0.0)


def _asked(question: Callable[[], T]) -> T | None:
    """The answer; None where the card has none."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _uuid(text: str | bytes) -> str:
    """``GPU-e27adf4b-65b8-…`` as the driver has it: digits alone."""
    text = text.decode() if isinstance(text, bytes) else text
    return text.removeprefix("GPU-").replace("-", "")


def _instance(number: int | None) -> int | None:
    return None if number in (None, _NO_INSTANCE) else number
