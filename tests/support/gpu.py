"""Drivers without a card, named by their fault, and programs that hold a false one."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from jupyterhub_gpu_reclaim.checkpoint.gpu import driver
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import (
    Card,
    CudaState,
    DriverError,
    Memory,
)
from jupyterhub_gpu_reclaim.linux import processes, ptrace

ILLEGAL_STATE = 401
CARD = Card(uuid="ab" * 16, name="NVIDIA Test")


class WellDriver:
    def __init__(self, *pids: int) -> None:
        self.states = dict.fromkeys(pids, CudaState.RUNNING)
        self.calls: list[tuple[str, int]] = []
        self.moves: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def present(self) -> bool:
        return True

    def cards(self) -> list[Card]:
        return [CARD]

    def peers(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing was started."""

    def state(self, pid: int, *, seconds: float = 0) -> CudaState | None:
        return self.states.get(pid)

    def thread(self, pid: int) -> int | None:
        *_, last = [None, *sorted(ptrace.tasks(pid))[1:]]
        return last

    def memory(self, pids) -> dict[int, Memory]:
        return {pid: Memory(own=(1 << 29,), borrowed=0) for pid in pids}

    def lock(self, pid: int, *, seconds: float) -> None:
        self._step("lock", pid, CudaState.RUNNING, CudaState.LOCKED)

    def checkpoint(self, pid: int, *, seconds: float) -> None:
        self._step("checkpoint", pid, CudaState.LOCKED, CudaState.CHECKPOINTED)

    def restore(self, pid: int, *, seconds: float, moves=()) -> None:
        self.moves = list(moves)
        self._step("restore", pid, CudaState.CHECKPOINTED, CudaState.LOCKED)

    def unlock(self, pid: int) -> None:
        self._step("unlock", pid, CudaState.LOCKED, CudaState.RUNNING)

    def _step(self, call: str, pid: int, before: CudaState, after: CudaState) -> None:
        with self._lock:
            self.calls.append((call, pid))
            if self.states[pid] is not before:
                raise DriverError(call, ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE")
            self.states[pid] = after


class AbsentDriver(WellDriver):
    def present(self) -> bool:
        return False

    def cards(self) -> list[Card]:
        raise DriverError("begin", -1, "no driver")

    def state(self, pid: int, *, seconds: float = 0) -> CudaState | None:
        raise AssertionError("nobody asks a driver that is not there")


class ManagedMemory(WellDriver):
    """The last process has memory that the driver cannot checkpoint."""

    def checkpoint(self, pid: int, *, seconds: float) -> None:
        if pid == max(self.states):
            raise DriverError(
                "checkpoint", driver.NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"
            )
        super().checkpoint(pid, seconds=seconds)


class MemoryOfAnother(WellDriver):
    """The last process has opened memory of another, and never comes back."""

    def memory(self, pids) -> dict[int, Memory]:
        told = super().memory(pids)
        if (last := max(self.states)) in told:
            told[last] = Memory(own=(1 << 29,), borrowed=2 << 20)
        return told

    def restore(self, pid: int, *, seconds: float, moves=()) -> None:
        if pid == max(self.states):
            raise DriverError("restore", 1, "CUDA_ERROR_INVALID_VALUE")
        super().restore(pid, seconds=seconds, moves=moves)


class PeersOfOneProcess(WellDriver):
    """Two cards read each other; the last process does not get back what is large."""

    def __init__(self, *pids: int, own=(600 << 20, 1 << 20)) -> None:
        super().__init__(*pids)
        self.own = own

    def peers(self) -> bool:
        return True

    def memory(self, pids) -> dict[int, Memory]:
        told = dict.fromkeys(pids, Memory(own=(1 << 30, 0), borrowed=0))
        return told | {max(self.states): Memory(own=self.own, borrowed=0)}

    def restore(self, pid: int, *, seconds: float, moves=()) -> None:
        if pid == max(self.states) and max(self.own) >= 512 << 20:
            raise DriverError("restore", 1, "CUDA_ERROR_INVALID_VALUE")
        super().restore(pid, seconds=seconds, moves=moves)


class TightLippedDriver(WellDriver):
    def memory(self, pids) -> dict[int, Memory]:
        raise DriverError("memory", 500, "the driver answers 0x1b to 0x80")


class BlindDriver(WellDriver):
    """Counts no memory of anybody, as if nobody had any."""

    def memory(self, pids) -> dict[int, Memory]:
        return {pid: Memory(own=(0,), borrowed=0) for pid in pids}


class Profiled(WellDriver):
    """The last process was looked at through CUPTI."""

    def lock(self, pid: int, *, seconds: float) -> None:
        if pid == max(self.states):
            raise DriverError("lock", driver.NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED")
        super().lock(pid, seconds=seconds)


class HeldElsewhere(WellDriver):
    """The last process's own thread of the driver is not told when first asked for."""

    told = False

    def thread(self, pid: int) -> int | None:
        if pid == max(self.states) and not self.told:
            self.told = True
            raise DriverError("thread", None, "no answer in 20 s")
        return super().thread(pid)


class BusyCard(WellDriver):
    """The last process's card does not come to an end."""

    def lock(self, pid: int, *, seconds: float) -> None:
        if pid == max(self.states):
            raise DriverError("lock", driver.NOT_READY, "CUDA_ERROR_NOT_READY")
        super().lock(pid, seconds=seconds)


class HangingCheckpoint(WellDriver):
    """The driver answers nothing, and has done it all the same when asked again."""

    def checkpoint(self, pid: int, *, seconds: float) -> None:
        super().checkpoint(pid, seconds=seconds)
        raise DriverError("checkpoint", None, "no answer in 1 s")


class PretendingDriver(WellDriver):
    """Says that all went well, and has done nothing."""

    def checkpoint(self, pid: int, *, seconds: float) -> None:
        """As a driver whose library was not the one of the process would."""


class CardTaken(WellDriver):
    """Nobody gets memory back."""

    def restore(self, pid: int, *, seconds: float, moves=()) -> None:
        raise DriverError("restore", 2, "CUDA_ERROR_OUT_OF_MEMORY")


class SilentDriver(WellDriver):
    def state(self, pid: int, *, seconds: float = 0) -> CudaState | None:
        raise DriverError("state", None, "no answer in 20 s")


#: Opens and maps what stands for a device, forks, and does as it is told.
HOLDER = """
import mmap, os, subprocess, sys, threading, time
path = sys.argv[1]
device = os.open(path, os.O_RDWR)
page = mmap.mmap(device, 8192, mmap.MAP_SHARED)
page[0:4] = b"card"
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
if "exec" in sys.argv:
    # As MPI starts its daemon: what is not closed on exec goes on in another program.
    os.set_inheritable(device, True)
    command = [sys.executable, "-c", sys.argv[-1], str(device)]
    subprocess.run(command, close_fds=False)
child = os.fork()
if child == 0:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    own = os.open(path, os.O_RDWR) if "own" in sys.argv else -1
    print(os.getpid(), device, flush=True)
    while line := sys.stdin.readline():
        print(eval(line), flush=True)
    os._exit(0)
os.wait()
"""

#: Another program, that has a device because nobody closed it.
LAUNCHED = """
import os, sys
device = int(sys.argv[1])
print(os.getpid(), device, flush=True)
while line := sys.stdin.readline():
    print(eval(line), flush=True)
"""


class Holder:
    def __init__(self, *words: str) -> None:
        #: The engine goes by the name alone; a file in /dev stands for the device.
        self.device = Path(f"/dev/nvidia-test-{os.getpid()}")
        self.device.write_bytes(bytes(8192))
        self._popen = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(self.device), *words, LAUNCHED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        child, fd = self._popen.stdout.readline().split()
        self.pid, self.child, self.fd = self._popen.pid, int(child), int(fd)

    def child_says(self, code: str) -> str:
        self._popen.stdin.write(code + "\n")
        self._popen.stdin.flush()
        return self._popen.stdout.readline().strip()

    def snapshot(self) -> processes.Snapshot:
        """As if this test were the session's init."""
        whole = processes.snapshot(os.getpid())
        mine = {self.pid, self.child}
        return processes.Snapshot(
            whole.init, tuple(p for p in whole.processes if p.pid in mine)
        )

    def process(self, pid: int) -> processes.Process:
        return next(p for p in self.snapshot().processes if p.pid == pid)

    def close(self) -> None:
        self._popen.kill()
        self._popen.stdin.close()
        self._popen.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, 9)
        self._popen.wait()
        self.device.unlink()
