"""Reads from NVIDIA's management library what every GPU and every process on it does.

The only importer of ``pynvml``. A reading costs the cards nothing: no context is made
and no work is queued. Anything a card does not report is ``None``, never zero. A
library that hangs (a card that fell off the bus) hangs one thread, once: while a
reading is under way every other one returns "unknown" at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from jupyterhub_gpu_reclaim.common.logs import News
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse, digits

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

#: Errors that say this machine has no GPU, rather than one that does not answer.
_NO_GPU: Final = (
    pynvml.NVMLError_LibraryNotFound,
    pynvml.NVMLError_DriverNotLoaded,
)
#: File of the driver while it is loaded; seen from every container, too.
_DRIVER: Final = Path("/proc/driver/nvidia/version")


class Nvml:
    """Opened when first needed; the file ``driver`` exists while that is loaded."""

    def __init__(self, library: Any = pynvml, *, driver: Path = _DRIVER) -> None:
        self._library = library
        self._driver = driver
        self._looking = threading.Lock()
        self._open = False
        self._news = News()

    def measure(self, since: float) -> list[CardUse] | None:
        """Every card's mean use from ``since`` to now; None if unknown."""
        # Blocks for milliseconds, or until the driver answers; harmless to repeat.
        if not self._looking.acquire(blocking=False):
            return None
        try:
            cards = list(self._cards(since))
        except _NO_GPU as error:
            # A container may lack the library of a machine that has cards.
            if self._driver.exists():
                self._log_once("the GPUs", error)
                return None
            return []
        except pynvml.NVMLError as error:
            self._log_once("the GPUs", error)
            self._open = False
            return None
        else:
            self._log_once("the GPUs")
            return cards
        finally:
            self._looking.release()

    def close(self) -> None:
        if self._open:
            with contextlib.suppress(pynvml.NVMLError):
                self._library.nvmlShutdown()

    def _log_once(self, whose: str, error: object = "") -> None:
        if self._news.is_new(whose, error):
            _log.warning("- no answer from %s: %s", whose, error)

    def _cards(self, since: float) -> Iterator[CardUse]:
        if not self._open:
            self._library.nvmlInit()
            self._open = True
        for number in range(self._library.nvmlDeviceGetCount()):
            try:
                handle = self._library.nvmlDeviceGetHandleByIndex(number)
            except pynvml.NVMLError as error:
                self._log_once(f"GPU {number}", error)
                yield CardUse()
                continue
            self._log_once(f"GPU {number}")
            yield self._card(handle, since)

    def _ask(self, what: str, handle: Any) -> Any:
        try:
            return getattr(self._library, f"nvmlDeviceGet{what}")(handle)
        except pynvml.NVMLError:
            return None

    def _card(self, handle: Any, since: float) -> CardUse:
        memory = self._ask("MemoryInfo", handle)
        rates = self._ask("UtilizationRates", handle)
        mode, uuid = self._ask("MigMode", handle), self._ask("UUID", handle) or ""
        return CardUse(
            uuid=digits(uuid.decode() if isinstance(uuid, bytes) else uuid),
            name=self._ask("Name", handle) or "",
            total=memory.total if memory else None,
            free=memory.free if memory else None,
            busy_percent=float(rates.gpu) if rates else None,
            # A card that cannot be divided is not.
            divided=bool(mode and mode[0]),
            processes=self._processes(handle, since, rates.gpu if rates else None),
        )

    def _processes(
        self, handle: Any, since: float, busy: int | None
    ) -> list[ProcessUse] | None:
        compute = self._ask("ComputeRunningProcesses", handle)
        if compute is None:
            return None
        graphics = self._ask("GraphicsRunningProcesses", handle)
        shared = self._ask("MPSComputeRunningProcesses", handle)
        used = self._use_by_pid(handle, since, busy)
        every = (*(graphics or ()), *(shared or ()), *compute)
        sharing = {process.pid for process in shared or ()}
        found = []
        for pid, process in sorted({each.pid: each for each in every}.items()):
            # With MPS, work may be reported for the MPS server only.
            silent = pid in sharing and busy != 0
            share = None if used is None else used.get(pid, None if silent else 0.0)
            memory, mps = process.usedGpuMemory, pid in sharing
            use = ProcessUse(pid=pid, memory=memory, sm_percent=share, mps=mps)
            found.append(use)
        return found

    def _use_by_pid(
        self, handle: Any, since: float, busy: int | None
    ) -> dict[int, float] | None:
        """Utilisation by pid; a process left out did nothing. None if unknown."""
        # "Not found", no measurement, is idleness only when the whole card was idle.
        library = self._library
        try:
            samples = library.nvmlDeviceGetProcessUtilization(
                handle, max(0, int(since * 1e6))
            )
        except pynvml.NVMLError_NotFound:
            return {} if busy == 0 else None
        except pynvml.NVMLError:
            return None
        return {sample.pid: float(sample.smUtil) for sample in samples}
