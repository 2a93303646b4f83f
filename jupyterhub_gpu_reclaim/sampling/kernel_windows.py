"""The recent samples of each kernel of one session, as if it were a session of its own.

A kernel that nobody uses may nap while the others of its session are at work. Its use
and its work are judged like a session's, by its own programs alone. Pure, as
:mod:`jupyterhub_gpu_reclaim.sampling.window` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyterhub_gpu_reclaim.common.models import KernelSample, Sample, Usage
    from jupyterhub_gpu_reclaim.sampling.window import Window


#: Kernels of one session that have a window; the others nap with their session.
MOST_KERNELS = 64


class KernelWindows:
    """Windows of the kernels whose programs are known, one for each.

    Args:
        window: makes one.
    """

    def __init__(self, window: Callable[[], Window]) -> None:
        self._window = window
        self._windows: dict[str, Window] = {}
        self._asleep: dict[str, float] = {}
        self.on_gpu: list[KernelSample] = []  #: kernels that have GPU memory now

    def add(self, sample: Sample) -> None:
        """Take a sample of the session; kernels that are gone are forgotten.

        A sample that says nothing of kernels changes nothing; each window sees the gap.
        """
        if sample.kernels is None:
            return
        known = [kernel for kernel in sample.kernels if kernel.program is not None]
        self.on_gpu = [kernel for kernel in known if kernel.gpus]
        known = sorted(known, key=lambda kernel: not kernel.gpus)[:MOST_KERNELS]
        there = {kernel.id for kernel in known}
        self._windows = {k: w for k, w in self._windows.items() if k in there}
        self._asleep = {k: at for k, at in self._asleep.items() if k in there}
        for kernel in known:
            window = self._windows.setdefault(kernel.id, self._window())
            window.add(_kernel_part(sample, kernel))
            if not kernel.gpus:
                self._asleep[kernel.id] = sample.at

    def note_asleep(self, kernels: Iterable[KernelSample], at: float) -> None:
        """Note that these kernels' memory was moved out since the newest sample."""
        asleep = {kernel.id for kernel in kernels}
        self._asleep |= dict.fromkeys(asleep, at)
        self.on_gpu = [each for each in self.on_gpu if each.id not in asleep]

    def usage(self, kernel: str, now: float, span: float) -> Usage | None:
        """Return a kernel's :meth:`Window.usage`; None: its programs are not known."""
        window = self._windows.get(kernel)
        return window.usage(now, span) if window is not None else None

    def without_gpu_at(self, kernel: str) -> float | None:
        """Return when a kernel was last seen without GPU memory, as while it naps."""
        return self._asleep.get(kernel)


def _kernel_part(sample: Sample, kernel: KernelSample) -> Sample:
    """Return a kernel's part of a sample, without what is not known by kernel."""
    return msgspec.structs.replace(
        sample,
        incarnation=f"{sample.incarnation}/{kernel.id}/{kernel.program}",
        kernels=[kernel],
        connections=kernel.connections,
        terminals=[],
        cpu_work=kernel.cpu_work,
        gpus=kernel.gpus,
        written=None,
        moved=None,
        paged=None,
        outside=None,
        last_typed=None,
        last_saved=None,
        last_asked=None,
        started=None,
    )
