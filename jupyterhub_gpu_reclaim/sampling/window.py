"""The recent samples of one session, summed up into its usage.

Pure: no clock, no I/O. A missing value is never idle: a gap in the samples starts the
window again, and anything unknown stays ``None``. The server's own ``last_activity`` is
not used: the polling of an open tab keeps it young.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Usage
from jupyterhub_gpu_reclaim.sampling.gpu import total
from jupyterhub_gpu_reclaim.sampling.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import KernelSample, Sample

#: Sampling intervals without a whole sample that make a gap.
GAP_INTERVALS = 3
#: Seconds after which a kernel that never said a word, with no connection, is idle.
UNUSED_SECONDS = 600.0
#: Seconds in which an unused page has sent all that it usually sends: one that is
#: hidden asks for news once a minute at least.
PAGE_SECONDS = 90.0
#: Fields of a sample that count up.
_COUNTED = ("cpu_work", "written", "moved", "paged")


class Window:
    def __init__(
        self,
        *,
        span: float,  # seconds that any session must be idle before it naps or goes
        interval: float,  # seconds between two samples, as intended
        usual: float | None = None,  # seconds that use is summed up over; None: span
    ) -> None:
        self._usual = span if usual is None else usual
        self._gap = GAP_INTERVALS * interval
        self._newest: Sample | None = None
        self._watched_since: float | None = None
        self._watched_until = 0.0
        self._gpu = Meter(span, self._gap)
        self._counters = {name: Meter(span, self._gap) for name in _COUNTED}
        self._active: tuple[float, str] | None = None

    def add(self, sample: Sample) -> None:
        """Take one sample; a repeated one is harmless."""
        # A late one adds what it knows of activity; a former incarnation's is ignored.
        newest = self._newest
        is_newer = newest is None or sample.at > newest.at
        if newest is not None and sample.incarnation != newest.incarnation:
            if not is_newer:
                return
            self._forget()
            newest = None
        for at, what in _activities(sample, newest):
            if self._active is None or at > self._active[0]:
                self._active = (at, what)
        if is_newer:
            self._extend_watch(sample)
            self._see_work(sample)
            self._newest = sample

    def usage(self, now: float, span: float | None = None) -> Usage:
        """``span``: seconds, if not the usual."""
        newest = self._newest
        if newest is None:
            return Usage(at=now, watched=0.0, sample_age=now, last_active=None)
        age, since = max(0.0, now - newest.at), self._watched_since
        if since is None or age > self._gap:
            since = self._watched_until
        over = self._usual if span is None else span
        cpu, paged = self._rate("cpu_work", over), self._counters["paged"]
        gpu = None if _gpu_share(newest) is None else self._gpu.rate(over)
        peak = None if _gpu_share(newest) is None else self._gpu.peak(over)
        percent, gpu_percent = _in_percent(cpu), _in_percent(gpu)
        kernels, prompt = newest.kernels, _newest_prompt(newest)
        moved = self._rate("written", over), self._rate("moved", over)
        return Usage(
            at=now,
            watched=self._watched_until - since,
            sample_age=age,
            last_active=self._active[0] if self._active else None,
            last_active_what=self._active[1] if self._active else "",
            busy_kernel=_busy_kernel(newest),
            unknown_kernel=_maybe_working_kernel(newest),
            prompt_kernel=prompt[1] if prompt else None,
            prompt_since=prompt[0] if prompt else None,
            cpu_percent=percent,
            gpu_percent=gpu_percent,
            gpu_peak_percent=_in_percent(peak),
            # An upload moves first, and is written at its end.
            data_rate=max((rate for rate in moved if rate is not None), default=None),
            page_peak_rate=None if newest.paged is None else paged.peak(over),
            page_quiet_rate=(
                None if newest.paged is None else paged.quiet_peak(over, PAGE_SECONDS)
            ),
            gpu_memory=_gpu_memory(newest),
            memory=newest.memory,
            connections=newest.connections,
            outside=newest.outside,
            kernels=None if kernels is None else len(kernels),
            terminals=None if newest.terminals is None else len(newest.terminals),
            jupyter=newest.jupyter,
            culls_after=newest.culls_after,
            job_due=newest.job_due,
            complete=_is_whole(newest)
            and None not in (percent, gpu_percent)
            and bool(self._active),
        )

    def _rate(self, counter: str, over: float) -> float | None:
        known = getattr(self._newest, counter, None) is not None
        return self._counters[counter].rate(over) if known else None

    def _forget(self) -> None:
        self._newest = None
        self._watched_since = None
        for meter in (self._gpu, *self._counters.values()):
            meter.clear()
        self._active = None

    def _extend_watch(self, sample: Sample) -> None:
        """Extend the time watched without a gap; only whole samples count."""
        if not _is_whole(sample):
            return
        broken = sample.at - self._watched_until > self._gap
        if self._watched_since is None or broken:
            self._watched_since = sample.at
        self._watched_until = sample.at

    def _see_work(self, sample: Sample) -> None:
        for name, meter in self._counters.items():
            if (work := getattr(sample, name)) is not None:
                meter.add(sample.at, float(work))
        share = _gpu_share(sample)
        if share is not None:
            self._gpu.add_share(sample.at, share)


def _in_percent(rate: float | None) -> float | None:
    return None if rate is None else 100.0 * rate


def _activities(sample: Sample, before: Sample | None) -> Iterator[tuple[float, str]]:
    # A kernel's or terminal's time in the future counts as now. A notebook's, which is
    # a file's and may be anything, is not believed then.
    if sample.started is not None:
        yield min(sample.started, sample.at), "session started"
    for kernel in sample.kernels or []:
        # A cell that waits is not used by what pages ask its kernel meanwhile.
        used = _prompt_time(kernel, sample)
        used = kernel.last_activity if used is None else used
        yield min(used, sample.at), f"kernel {kernel.name}"
    for terminal in sample.terminals or []:
        if terminal.last_input is not None:
            yield min(terminal.last_input, sample.at), f"terminal {terminal.name}"
    if sample.last_typed is not None:
        yield min(sample.last_typed, sample.at), "terminal of a program"
    if sample.last_saved is not None and sample.last_saved <= sample.at:
        yield sample.last_saved, "file saved"
    if sample.last_asked is not None:
        yield min(sample.last_asked, sample.at), "request of a person"
    if before is not None and before.at < sample.at:
        yield from _changes(sample, before)


def _changes(sample: Sample, before: Sample) -> Iterator[tuple[float, str]]:
    """Kernels and terminals that were opened, or closed while in use."""
    # An idle one may have been closed by a culler of the server's own; if a person
    # closes it, our server extension tells (``last_asked``).
    if sample.kernels is not None and before.kernels is not None:
        ids = {kernel.id for kernel in sample.kernels}
        old = {kernel.id: kernel.execution_state for kernel in before.kernels}
        gone = (state for id_, state in old.items() if id_ not in ids)
        if ids - old.keys() or any(state != "idle" for state in gone):
            yield sample.at, "kernel opened or closed"
    if sample.terminals is not None and before.terminals is not None:
        names = {terminal.name for terminal in sample.terminals}
        if names - {terminal.name for terminal in before.terminals}:
            yield sample.at, "terminal opened"


def _gpu_share(sample: Sample) -> float | None:
    """Percent of the time that the busiest card worked for it; None if unknown."""
    if sample.gpus is None:
        return None
    shares = [gpu.sm_percent for gpu in sample.gpus]
    known = [share for share in shares if share is not None]
    return max(known, default=0.0) if len(known) == len(shares) else None


def _gpu_memory(sample: Sample) -> int | None:
    return None if sample.gpus is None else total(gpu.memory for gpu in sample.gpus)


def _is_whole(sample: Sample) -> bool:
    return (
        sample.kernels is not None
        and sample.cpu_work is not None
        and _gpu_share(sample) is not None
        and sample.terminals is not None
        and all(terminal.last_input is not None for terminal in sample.terminals)
    )


def _busy_kernel(sample: Sample) -> str | None:
    return next(
        (
            kernel.name
            for kernel in sample.kernels or []
            if kernel.execution_state == "busy" and _prompt_time(kernel, sample) is None
        ),
        None,
    )


def _newest_prompt(sample: Sample) -> tuple[float, str] | None:
    asked = (
        (_prompt_time(kernel, sample), kernel.name) for kernel in sample.kernels or []
    )
    return max(((at, name) for at, name in asked if at is not None), default=None)


def _prompt_time(kernel: KernelSample, sample: Sample) -> float | None:
    # A question that was open in a suspend is asked again after the return.
    if kernel.execution_state != "busy" or kernel.prompt_since is None:
        return None
    return min(max(kernel.prompt_since, sample.started or 0.0), sample.at)


def _maybe_working_kernel(sample: Sample) -> str | None:
    """A kernel that may be working, for all that its server knows."""
    # A server learns that a kernel is idle from its first message. One that was started
    # by a call, and that no page has ever opened, is "starting" for ever; one that has
    # died and is not started again is "dead" for ever.
    for kernel in sample.kernels or []:
        if kernel.execution_state in {"starting", "dead"} and not kernel.connections:
            may_be = sample.at - kernel.last_activity < UNUSED_SECONDS
        else:
            may_be = kernel.execution_state not in {"busy", "idle"}
        if may_be:
            return kernel.name
    return None
