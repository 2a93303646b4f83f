"""Talk to NVIDIA's driver in a process of its own; a long-lived helper.

Run by :mod:`~jupyterhub_gpu_reclaim.engine.cuda_driver` as ``python3 -I -S
cuda_helper.py``. It initialises the driver once, which takes seconds, and then answers
JSON lines on its input, several at a time and in any order, on its output. It ends when
its input does. The driver's library is never loaded into the agent: it can hang, and
a process can be ended. Standard library only. It decides nothing.

A request is ``{"id": …, "call": …, "pid": …}`` with what the call needs; the answer is
``{"id": …, "code": <CUresult>, …}``. Pids are the host's. The calls are those of the
driver's "CUDA Checkpointing" chapter (cuda.h, driver 570 and later).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LIBRARY = "libcuda.so.1"
#: Calls in hand at the same time: one for each CUDA process of a large session.
WORKERS = 32
#: What the library lacks, and what it is too old for, in the driver's own codes.
NO_LIBRARY = -1
NOT_FOUND = 500
#: No structure of the checkpoint calls is larger; what is not set must be zero.
ARGUMENT_BYTES = 128
UUID_BYTES = 16
TOTAL_NAME = 256


class Library:
    """libcuda, initialised."""

    def __init__(self) -> None:
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL(LIBRARY)
        except OSError:
            self._library = None

    def begin(self) -> dict[str, Any]:
        """Initialise; the version and the cards, or the code of what went wrong."""
        if self._library is None:
            return {"code": NO_LIBRARY}
        code = self._call("cuInit", 0)
        if code:
            return {"code": code}
        version, count = ctypes.c_int(), ctypes.c_int()
        code = self._call("cuDriverGetVersion", ctypes.byref(version))
        code = code or self._call("cuDeviceGetCount", ctypes.byref(count))
        cards = [self._card(number) for number in range(count.value)]
        supported = hasattr(self._library, "cuCheckpointProcessCheckpoint")
        return {
            "code": code if supported else NOT_FOUND,
            "version": version.value,
            "cards": cards,
        }

    def state(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a process is: 0 running, 1 locked, 2 checkpointed, 3 failed."""
        state = ctypes.c_int(-1)
        code = self._call(
            "cuCheckpointProcessGetState", request["pid"], ctypes.byref(state)
        )
        return {"code": code, "state": state.value}

    def lock(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let its GPU work come to an end, and no more begin."""
        arguments = (ctypes.c_uint * (ARGUMENT_BYTES // 4))(request["milliseconds"])
        return {"code": self._process("Lock", request["pid"], arguments)}

    def checkpoint(self, request: dict[str, Any]) -> dict[str, Any]:
        """Move its GPU memory into its own, and let the GPU go."""
        return {"code": self._process("Checkpoint", request["pid"])}

    def restore(self, request: dict[str, Any]) -> dict[str, Any]:
        """Move its GPU memory back, to other cards where ``moves`` says so."""
        moves = request["moves"]
        pairs = b"".join(bytes.fromhex(old) + bytes.fromhex(new) for old, new in moves)
        array = ctypes.create_string_buffer(pairs, max(len(pairs), 1))
        arguments = (ctypes.c_uint64 * (ARGUMENT_BYTES // 8))()
        if moves:
            arguments[0] = ctypes.addressof(array)
            arguments[1] = len(moves)
        return {"code": self._process("Restore", request["pid"], arguments)}

    def unlock(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let it use the GPU again."""
        return {"code": self._process("Unlock", request["pid"])}

    def thread(self, request: dict[str, Any]) -> dict[str, Any]:
        """The thread in the process that does the driver's work there."""
        thread = ctypes.c_int()
        code = self._call(
            "cuCheckpointProcessGetRestoreThreadId",
            request["pid"],
            ctypes.byref(thread),
        )
        return {"code": code, "thread": thread.value}

    def name(self, code: int) -> str:
        """What the driver calls an error."""
        text = ctypes.c_char_p()
        if code == NO_LIBRARY or self._call("cuGetErrorName", code, ctypes.byref(text)):
            return str(code)
        return (text.value or b"").decode()

    def _process(self, call: str, pid: int, arguments: Any = None) -> int:
        if arguments is None:
            arguments = (ctypes.c_uint64 * (ARGUMENT_BYTES // 8))()
        return self._call(f"cuCheckpointProcess{call}", pid, ctypes.byref(arguments))

    def _card(self, number: int) -> dict[str, Any]:
        device, total = ctypes.c_int(), ctypes.c_size_t()
        uuid = ctypes.create_string_buffer(UUID_BYTES)
        name = ctypes.create_string_buffer(TOTAL_NAME)
        self._call("cuDeviceGet", ctypes.byref(device), number)
        self._call("cuDeviceGetUuid_v2", uuid, device)
        self._call("cuDeviceGetName", name, len(name), device)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        return {
            "uuid": uuid.raw.hex(),
            "name": name.value.decode(errors="replace"),
            "memory": total.value,
        }

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            return NOT_FOUND


def main() -> None:
    """Answer until the input ends."""
    # The answers' own descriptor: whatever a library prints goes to the log.
    answers = os.dup(1)
    os.dup2(2, 1)
    library, lock = Library(), threading.Lock()

    def answer(facts: dict[str, Any]) -> None:
        line = json.dumps(facts).encode() + b"\n"
        with lock:
            os.write(answers, line)

    def work(request: dict[str, Any]) -> None:
        facts = getattr(library, request["call"])(request)
        if facts["code"]:
            facts["name"] = library.name(facts["code"])
        answer({"id": request["id"], **facts})

    begun = library.begin()
    answer({"id": 0, **begun, "name": library.name(begun["code"])})
    with ThreadPoolExecutor(WORKERS) as pool:
        for line in sys.stdin:
            pool.submit(work, json.loads(line))
        # The agent has gone. What hangs in the driver must not keep us.
        os._exit(0)


if __name__ == "__main__":
    main()
