"""Lets CRIU end before the store has taken its pages.

CRIU hands them over by reference (vmsplice(2)), and moving them on from pipe to pipe
(splice(2)) copies nothing. So they wait in pipes of ours while a dump goes on to its
end, and its return is rehearsed while they are written. They are read when the store
takes them: until then the tree must stand, and whether it has is known to the
nanosecond (proc(5), schedstat).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu.stream import BLOCK, PAGES, PipeSink
from jupyterhub_gpu_reclaim.common.errors import RolledBack
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink
    from jupyterhub_gpu_reclaim.linux.processes import Process

#: So many pipes of a block each may wait; more would gain nothing, as the store takes
#: longer for half a GiB than a rehearsal takes.
MOST_PIPES: Final = 512
_LOOK_SECONDS: Final = 0.05


class MemoryBehind:
    """The sinks of a dump, whose pages may come late."""

    def __init__(self, sinks: Callable[[str], Sink]) -> None:
        self._sinks = sinks
        self._late: list[_Late] = []
        self._room = threading.Semaphore(MOST_PIPES)
        self._filling = threading.Lock()
        self._mark: dict[Process, list[int]] = {}

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``."""
        sink = self._sinks(name)
        if not name.startswith(PAGES) or not isinstance(sink, PipeSink):
            return sink
        return _Late(sink, self._room, self._filling, self._late)

    def mark(self, tree: Iterable[Process]) -> None:
        """The dump has ended; from here on none of the tree may run until the end."""
        if not all(one.done.is_set() for one in self._late):
            self._mark = {one: processes.times_stopped(one) for one in tree}

    @property
    def any(self) -> bool:
        """Whether a sink has had, or has, something to take later."""
        return bool(self._late)

    def wait(self, cancel: Cancel) -> None:
        """Wait until the sinks have everything.

        Raises:
            RolledBack: it was cancelled, or a process has run meanwhile.
            Exception: what a sink has raised.
        """
        for one in self._late:
            one.wait(cancel)
        for process, before in self._mark.items():
            if processes.times_run(process) != before:
                why = f"{process.name} has gone on, which stood"
                raise RolledBack(Reason.CAPTURE_FAILED, why=why)


class _Late:
    """A ``PipeSink`` that is done with CRIU's pipe before another has taken it all."""

    def __init__(
        self,
        sink: PipeSink,
        room: threading.Semaphore,
        filling: threading.Lock,
        late: list[_Late],
    ) -> None:
        self._sink = sink
        self._room = room
        self._filling = filling
        self._others = late
        self._full: SimpleQueue[int] = SimpleQueue()
        self._error: Exception | None = None
        self.done = threading.Event()  #: the sink has it, or has failed

    def write(self, data: memoryview, /) -> None:
        self._sink.write(data)

    def cancel(self) -> None:
        self._sink.cancel()

    def close(self) -> None:
        """What comes by a pipe is closed once it has been taken."""

    def take_pipe(self, pipe: int, /) -> int:
        waits, total, ended = _fill(pipe)
        if ended:  # most processes are small
            try:
                self._sink.take_pipe(waits)
            finally:
                os.close(waits)
            self._sink.close()
            return total
        # One after the other: the store has one set of workers, and what is further
        # behind may not take the room from what they wait for.
        with self._filling:
            self._room.acquire()
            end, begin = os.pipe2(os.O_CLOEXEC)
            _widen(begin)
            before = self._others[-1] if self._others else None
            self._others.append(self)
            handing = (before, end, begin)
            threading.Thread(target=self._hand_over, args=handing, daemon=True).start()
            try:
                while True:
                    self._full.put(waits)
                    if ended:
                        return total
                    self._await_room()
                    waits, count, ended = _fill(pipe)
                    total += count
            finally:
                self._full.put(_END)

    def _await_room(self) -> None:
        self._check()
        while not self._room.acquire(timeout=_LOOK_SECONDS):
            self._check()

    def wait(self, cancel: Cancel) -> None:
        while not self.done.wait(_LOOK_SECONDS):
            cancel.check()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _hand_over(self, before: _Late | None, end: int, begin: int) -> None:
        if before is not None:
            before.done.wait()
        taking = threading.Thread(target=self._take, args=(end,), daemon=True)
        taking.start()
        try:
            while (waits := self._full.get()) != _END:
                with contextlib.suppress(BrokenPipeError):  # the sink says why
                    while os.splice(waits, begin, BLOCK):
                        pass
                os.close(waits)
                self._room.release()
        finally:
            os.close(begin)
            taking.join()
            self.done.set()

    def _take(self, pipe: int) -> None:
        try:
            self._sink.take_pipe(pipe)
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - raised by who waits for it
            self._error = error
        finally:
            os.close(pipe)


_END: Final = -1


def _fill(source: int) -> tuple[int, int, bool]:
    """Move what comes into a new pipe until it is full.

    Returns:
        The pipe, how many bytes are in it, and whether nothing follows.
    """
    end, begin = os.pipe2(os.O_CLOEXEC)
    total, poll = 0, select.poll()
    poll.register(source, select.POLLIN)
    try:
        _widen(begin)
        while True:
            poll.poll()
            try:
                count = os.splice(source, begin, BLOCK, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                return end, total, False
            if not count:
                return end, total, True
            total += count
    except BaseException:
        os.close(end)
        raise
    finally:
        os.close(begin)


def _widen(pipe: int) -> None:
    with contextlib.suppress(OSError):  # where it stays smaller, less waits
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, BLOCK)
