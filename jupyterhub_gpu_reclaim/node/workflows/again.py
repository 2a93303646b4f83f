"""Retries a capture or nap if a program was just beginning to use a GPU.

That passes by itself, within seconds: the driver knows the program then, or it has gone
(PyTorch starts its compilers so, beside its computation). Each attempt is a whole
operation, which undoes everything, so nothing is touched between two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import DEVICES
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.records import ENDED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Event
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation
    from jupyterhub_gpu_reclaim.node.operations.records import Record

#: Seconds before each further attempt; a program's first call takes up to three.
PAUSES: Final = (0.5, 1.5, 3.0)
_TICK: Final = 0.1


def looking_again(
    attempt: Callable[[Operation], AsyncIterator[Event]],
    record: Callable[[], Record | None],
    clock: Clock,
) -> Callable[[Operation], AsyncIterator[Event]]:
    """The same work, up to four times.

    An attempt undoes its work when it raises; the record tells whether it could.
    """

    async def work(operation: Operation) -> AsyncIterator[Event]:
        for pause in PAUSES:
            try:
                async for event in attempt(operation):
                    yield event
            except ReclaimError as error:
                if not _passes(error) or not _undone(record()):
                    raise
                await _wait(pause, operation, clock)
            else:
                return
        async for event in attempt(operation):
            yield event

    return work


def _passes(error: ReclaimError) -> bool:
    # It has a GPU open already.
    if error.reason is Reason.GPU_BEGUN:
        return True
    return error.reason is Reason.DEVICE_OPEN and DEVICES in str(error)


def _undone(record: Record | None) -> bool:
    return record is None or record.stage in ENDED


async def _wait(seconds: float, operation: Operation, clock: Clock) -> None:
    """Let that time pass.

    Raises:
        RolledBack: the operation was cancelled.
    """
    end = clock.monotonic() + seconds
    while True:
        operation.cancel.check()
        if clock.monotonic() >= end:
            return
        await clock.sleep(_TICK)
