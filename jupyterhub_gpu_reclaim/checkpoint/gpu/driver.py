"""Calls NVIDIA's driver through a helper process that can be ended when it hangs.

Any thread may call. The helper is started when it is first needed and stays: a fresh
one pays seconds for initialising the driver. Where there is no driver, every call says
so and nothing is tried again for a while. It knows the driver's calls and codes; what
they are used for is in ``cuda``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.checkpoint.gpu import driver_helper

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_log = logging.getLogger(__name__)

HELPER = Path(driver_helper.__file__)
#: Initialising many cards without a persistence daemon takes that long.
BEGIN_SECONDS = 60.0
#: For calls that a driver that works answers at once.
QUICK_SECONDS = 20.0
#: A machine without a driver is asked again so much later: one may be installed.
ABSENT_SECONDS = 300.0

#: How often a driver is asked that tells that memory moves, instead of waiting.
MOVING_SECONDS = 0.05

# From cuda.h, CUresult.
NOT_READY = 600
NOT_SUPPORTED = 801


class CudaState(IntEnum):
    """CUprocessState; the last two are told by driver 615 and later."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


_MOVING = (CudaState.CHECKPOINTING, CudaState.RESTORING)


class DriverError(Exception):
    """The driver refused, or did not answer: it has no code then."""

    def __init__(self, call: str, code: int | None, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Card:
    uuid: str  #: 32 hexadecimal digits
    name: str


@dataclass(frozen=True, slots=True)
class Memory:
    own: tuple[int, ...]  #: on each card of the machine
    #: Of others, open through CUDA IPC; also its own that it has imported again.
    borrowed: int

    def __bool__(self) -> bool:
        return any(self.own) or self.borrowed > 0


class Driver:
    def __init__(self, command: Sequence[str] = ()) -> None:
        self._command = list(command) or [sys.executable, "-I", "-S", str(HELPER)]
        self._lock = threading.Lock()
        self._helper: _Helper | None = None
        self._absent_until = float("-inf")

    def present(self) -> bool:
        """Whether there is a driver that can save; starts the helper."""
        with contextlib.suppress(DriverError):
            self._started()
            return True
        return False

    def cards(self) -> list[Card]:
        """Every GPU of this machine.

        Raises:
            DriverError: there is no driver; likewise all that follow.
        """
        return [Card(**card) for card in self._started().facts["cards"]]

    def peers(self) -> bool:
        """Whether a GPU of this machine can read another's memory.

        Raises:
            DriverError: there is no driver.
        """
        return bool(self._started().facts["peers"])

    def state(self, pid: int, *, seconds: float = QUICK_SECONDS) -> CudaState | None:
        """Of a process by its host pid; None for one that has no CUDA.

        While its memory moves, the answer comes when that has been done.

        Raises:
            DriverError: there is no driver, it does not answer, the memory still moves
                after so many seconds, or the state is none that we know.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = self._ask("state", seconds, pid=pid)["state"]
            except DriverError as error:
                if error.code is None:
                    raise
                return None
            if answer not in _MOVING:
                break
            if time.monotonic() > deadline:
                raise DriverError("state", None, f"memory moves after {seconds:.0f} s")
            time.sleep(MOVING_SECONDS)
        try:
            return CudaState(answer)
        except ValueError:
            raise DriverError("state", None, f"{answer} is unknown") from None

    def thread(self, pid: int) -> int | None:
        """The thread of a process that does the driver's work there; None for none.

        It may be told as the process's own pid namespace counts.
        """
        try:
            return int(self._ask("thread", QUICK_SECONDS, pid=pid)["thread"])
        except DriverError as error:
            if error.code is None:
                raise
            return None

    def memory(self, pids: Iterable[int]) -> dict[int, Memory]:
        """GPU memory of processes, by host pid.

        Raises:
            DriverError: the kernel's driver does not report it, or not as we know it.
        """
        answer = self._ask("memory", QUICK_SECONDS, pids=list(pids))
        return {
            int(pid): Memory(tuple(own), borrowed)
            for pid, (own, borrowed) in answer["memory"].items()
        }

    def lock(self, pid: int, *, seconds: float) -> None:
        """Wait until the process's GPU work is done and let no more begin."""
        limit = seconds + QUICK_SECONDS
        self._ask("lock", limit, pid=pid, milliseconds=int(seconds * 1000))

    def checkpoint(self, pid: int, *, seconds: float) -> None:
        self._ask("checkpoint", seconds, pid=pid)

    def restore(
        self, pid: int, *, seconds: float, moves: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Move it back; ``moves`` are pairs of cards' uuids and names every card."""
        self._ask("restore", seconds, pid=pid, moves=list(moves))

    def unlock(self, pid: int) -> None:
        self._ask("unlock", QUICK_SECONDS, pid=pid)

    def close(self) -> None:
        with self._lock:
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.end()

    def _ask(self, call: str, seconds: float, **facts: Any) -> dict[str, Any]:
        helper = self._started()
        try:
            return helper.ask(call, seconds, facts)
        except TimeoutError:
            # It hangs in the driver. Others' calls in it fail too; all roll back
            # through a fresh one.
            with self._lock:
                if self._helper is helper:
                    self._helper = None
            helper.end()
            raise DriverError(call, None, f"no answer in {seconds:.0f} s") from None

    def _started(self) -> _Helper:
        with self._lock:
            if self._helper is not None and self._helper.alive():
                return self._helper
            if time.monotonic() < self._absent_until:
                raise DriverError("begin", driver_helper.NO_LIBRARY, "no driver")
            if self._helper is not None:
                self._helper.end()
                self._helper = None
            helper = _Helper(self._command)
            try:
                helper.begin()
            except DriverError:
                helper.end()
                self._absent_until = time.monotonic() + ABSENT_SECONDS
                raise
            self._helper = helper
            return helper


class _Helper:
    def __init__(self, command: Sequence[str]) -> None:
        self._ids = itertools.count(1)
        self._begun: Future[dict[str, Any]] = Future()
        self._waiting: dict[int, Future[dict[str, Any]]] = {0: self._begun}
        self._ended = False
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.facts: dict[str, Any] = {}
        threading.Thread(target=self._read, name="cuda", daemon=True).start()

    def begin(self) -> None:
        try:
            self.facts = _checked("begin", self._begun.result(BEGIN_SECONDS))
        except TimeoutError:
            raise DriverError("begin", None, "no answer") from None

    def alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, call: str, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
        future: Future[dict[str, Any]] = Future()
        number = next(self._ids)
        line = json.dumps({"id": number, "call": call, **facts}).encode() + b"\n"
        with self._lock:
            assert self._popen.stdin is not None
            try:
                self._popen.stdin.write(line)
                self._popen.stdin.flush()
            except OSError:
                self._ended = True
            if self._ended:
                raise DriverError(call, None, "the helper has ended")
            self._waiting[number] = future
        return _checked(call, future.result(seconds))

    def end(self) -> None:
        """End it whatever it does; a process that it worked on keeps its state."""
        self._popen.kill()
        self._popen.wait()
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                with self._lock:
                    future = self._waiting.pop(answer["id"], None)
                if future is not None:
                    future.set_result(answer)
        with self._lock:
            left, self._waiting, self._ended = [*self._waiting.values()], {}, True
        for future in left:
            future.set_exception(DriverError("call", None, "the helper has ended"))


def _checked(call: str, answer: dict[str, Any]) -> dict[str, Any]:
    if answer["code"]:
        raise DriverError(call, answer["code"], answer["name"])
    return answer
