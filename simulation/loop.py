"""One event loop with virtual time, for many simulated programs in one process.

Nobody sleeps: when nothing is ready, the clock jumps to the next timer. What asyncio
does is asyncio's own code (``BaseEventLoop``); only its turn is written again here, so
that three things hold which neither ``looptime`` nor a selector loop gives:

* **Programs.** Each callback belongs to the :class:`Program` of the context that it was
  made in. The callbacks of a program that was killed are dropped: not even a
  ``finally`` of it runs, as none does after SIGKILL.
* **Blocking code.** ``run_in_executor``, and so ``asyncio.to_thread``, runs the call in
  a greenlet on this thread. Exactly one runs; it hands over where a double says that it
  blocks (:func:`pause`), and only there. So the agent's threads are simulated without a
  change of its code, and without a thread.
* **Turns are counted.** A program may be killed before its n-th turn, which is before
  any await of it, or at its n-th write (:meth:`Program.effect`).

The order of everything follows from the calls alone: no selector, no threads, no wall
clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import itertools
import sys
import warnings
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: A Monday, 00:00 UTC.
MONDAY = 1_735_516_800.0


#: What a dead program's coroutines say when they are collected.
_DEATHS = (
    "no running event loop",
    "GeneratorExit",
    "never awaited",
    "didn't stop after athrow",
)
#: Runs between two collections of garbage, which take as long as a run.
COLLECT_EVERY = 20
_CLOSED = itertools.count(1)


class Killed(BaseException):
    """The program's end; not an Exception, as nobody catches SIGKILL."""


class Stuck(RuntimeError):
    """Everybody waits for somebody else: time has nowhere to go."""


class Program:
    """One simulated process: what ends with it, and when it is to be killed."""

    def __init__(self, name: str, machine: str = "") -> None:
        self.name = name
        self.machine = machine
        self.alive = True
        self.paused = False  #: SIGSTOP, or a machine that stands
        self.waiting: list[Any] = []  #: what comes when it goes on
        #: kill before this many more turns, or at this many more writes
        self.turns_left: int | None = None
        self.writes_left: int | None = None
        self.at_end: list[Callable[[], None]] = []

    def kill(self) -> None:
        if not self.alive:
            return
        self.alive = False
        for tell in self.at_end:
            Context().run(tell)  # what follows is not the dead program's

    def turn(self) -> bool:
        """Whether it may run once more."""
        if self.turns_left is not None:
            self.turns_left -= 1
            if self.turns_left <= 0:
                self.turns_left = None
                self.kill()
        return self.alive

    def effect(self) -> None:
        """A write to something that outlives the program is about to be made, or was.

        Raises:
            Killed: the program ends here.
        """
        if self.alive and self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.writes_left = None
                self.kill()
        if not self.alive:
            raise Killed(self.name)


PROGRAM: ContextVar[Program | None] = ContextVar("program", default=None)


class _Handle(asyncio.Handle):
    """A callback, without what asyncio keeps of it for debugging."""

    __slots__ = ()
    _repr = None
    _source_traceback = None

    def __init__(
        self, callback: Callable[..., Any], args: Any, context: Context | None
    ) -> None:
        self._callback: Any = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()


class _Timer(_Handle, asyncio.TimerHandle):
    """The same for a later time; if it is cancelled, it is dropped at that time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Any,
        context: Context | None,
    ) -> None:
        _Handle.__init__(self, callback, args, context)
        self._when = when


class _Due(float):
    """A timer's time; a heap compares these by the hundred thousand."""

    timer: _Timer


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in simulated seconds, from 0 on."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 1e-9
        self.now = 0.0
        self.turns = 0
        self._timers: list[_Due] = []
        #: everything that was begun and not ended: killed programs are never collected
        self.graveyard: list[Any] = []
        if not hasattr(sys.unraisablehook, "silent"):
            sys.unraisablehook = _silence(sys.unraisablehook)
        self.set_exception_handler(_ignore)

    def time(self) -> float:
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run what blocks in a greenlet of its own, from the next turn on."""
        del executor
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - as a thread's would be
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        thread = greenlet(work)
        self.graveyard.append(thread)
        self.call_soon(_switch, thread)
        return future

    # --- asyncio's own calls, without its checks for debugging
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, context)
        due = _Due(when)
        due.timer = timer
        heapq.heappush(self._timers, due)
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any]
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        program = PROGRAM.get() if context is None else context.get(PROGRAM)
        if program is not None:  # it may be killed in the middle of this
            self.graveyard.append(task)
        return task

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        if not ready:
            self._jump()
        while timers and timers[0] <= self.now:
            ready.append(heapq.heappop(timers).timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            program = handle._context.get(PROGRAM)
            if program is not None:
                if program.paused and program.alive:
                    program.waiting.append(handle)
                    continue
                if not program.turn():
                    self.graveyard.append(handle)
                    continue
            self.turns += 1
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException:  # noqa: BLE001 - as asyncio does, which tells of it
                pass

    def resume(self, program: Program) -> None:
        self._ready.extend(program.waiting)  # type: ignore[attr-defined]
        program.waiting.clear()

    def _jump(self) -> None:
        """Let time pass until the next timer."""
        timers = self._timers
        while timers and timers[0].timer._cancelled:
            heapq.heappop(timers)
        if timers:
            self.now = max(self.now, float(timers[0]))
        elif not self._stopping:  # type: ignore[attr-defined]
            raise Stuck("everybody waits for somebody else")

    def _write_to_self(self) -> None:
        """No other thread wakes this loop."""

    def close(self) -> None:
        """Leave nothing for the garbage collector to run."""
        asyncio.set_event_loop(None)  # or what ends here has asyncio make a real one
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tasks that a dead program would begin
            for each in self.graveyard:
                _bury(each)
            self.graveyard.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()
        if next(_CLOSED) % COLLECT_EVERY == 0:
            gc.collect()

    def __del__(self) -> None:
        """It stays open for what the garbage collector still ends."""


def _silence(before: Callable[[Any], object]) -> Callable[[Any], object]:
    """Do not hear what a dead program says when it is collected."""

    def hook(told: Any) -> None:
        words = str(told.exc_value)
        ours = isinstance(told.exc_value, Killed) or any(
            each in words for each in _DEATHS
        )
        if not ours:
            before(told)

    hook.silent = True  # type: ignore[attr-defined]
    return hook


def _bury(each: Any) -> None:
    """End what was left in its middle, so that the garbage collector need not."""
    with contextlib.suppress(BaseException):
        if isinstance(each, asyncio.Task) and not each.done():
            if (coroutine := each.get_coro()) is not None:
                coroutine.close()
        elif isinstance(each, greenlet) and each:
            each.throw(Killed("the end"))


def _ignore(loop: object, context: dict[str, Any]) -> None:
    """What a killed program leaves is no news; checkers read the product's own log."""


def _switch(thread: greenlet) -> None:
    thread.parent = getcurrent()
    thread.switch()


def pause(seconds: float) -> None:
    """Block for so long, in code that the product runs in a thread."""
    thread = getcurrent()
    if thread.parent is None:
        return  # on the loop itself, where nothing may block
    asyncio.get_running_loop().call_later(seconds, _switch, thread)
    thread.parent.switch()
    program = PROGRAM.get()
    if program is not None and not program.alive:
        raise Killed(program.name)


def spawn(program: Program | None, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    context = copy_context()
    context.run(PROGRAM.set, program)
    return asyncio.get_running_loop().create_task(work, context=context)


class LoopClock:
    """``common.clock.Clock`` in the running loop's time; its wall clock may be wrong.

    Args:
        skew: returns how many seconds the wall clock is ahead.
    """

    def __init__(self, skew: Callable[[], float] = float) -> None:
        self._skew = skew

    def now(self) -> float:
        return MONDAY + asyncio.get_running_loop().time() + self._skew()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
