"""Calls NVIDIA's driver in a process of its own; a long-lived helper.

Started by :mod:`~jupyterhub_gpu_reclaim.checkpoint.gpu.driver` as ``python3 -I -S
driver_helper.py``. It initialises the driver once, which takes seconds, and answers
JSON lines, several at a time and in any order, until its input ends: ``{"id": …,
"call": …, "pid": …}`` by ``{"id": …, "code": <CUresult>, …}``. Pids are the host's,
calls those of cuda.h ("CUDA Checkpointing"). The library is never loaded into the
agent: it can hang, and a process can be ended. Standard library only.

Whether a process has memory of another one open (CUDA IPC) the library does not tell,
but the kernel's driver counts it, in a call of NVML's (:class:`KernelDriver`).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
#: Calls in hand at the same time: one for each CUDA process of a large session.
WORKERS = 32
#: Codes like the driver's own: for no library, and for one that is too old.
NO_LIBRARY = -1
NOT_FOUND = 500
#: No structure of the checkpoint calls is larger; what is not set must be zero.
ARGUMENT_BYTES = 128
UUID_BYTES = 16
TOTAL_NAME = 256

# The interface of the kernel's driver, from the headers of NVIDIA's open kernel modules
# (nvos.h, nv_escape.h, cl0080.h, ctrl0000gpu.h, ctrl2080gpu.h).
DEVICES, CONTROL_DEVICE = Path("/dev"), "/dev/nvidiactl"
_ESCAPE_CONTROL, _ESCAPE_ALLOCATE = 0x2A, 0x2B
_ROOT, _DEVICE, _SUBDEVICE = 0x0, 0x80, 0x2080
_GET_ATTACHED_IDS, _GET_ID_INFO, _GET_PID_INFO = 0x201, 0x205, 0x2080018E
#: Both calls' own arguments: handles, the parameters' address and size, the status.
_CALL = struct.Struct("<4IQII")
_DEVICE_PARAMETERS = struct.Struct("<5I4xQQQI4x")
_ID_INFO = struct.Struct("<8I")
#: pid, what is asked (0: memory), result; private, owned and borrowed bytes, the same
#: three again of what is protected; two numbers of MIG.
_PID_INFO = struct.Struct("<3I4x6Q2I")
_PID_INFO_COUNT = 200
_NO_GPU = 0xFFFFFFFF
#: Handles are ours to choose; the kernel's own have other leading digits.
_FIRST_HANDLE = 0x5C000000


class KernelDriver:
    """The kernel's driver itself, asked whose memory processes have open."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._root = 0
        self._subdevices: list[int] = []

    def begin(self) -> None:
        """Open what is asked; :meth:`close` gives it back, also after a failure.

        Raises:
            OSError: the driver is not there, or not as we know it.
        """
        # Queries about a card need that card open.
        cards = sorted(str(path) for path in DEVICES.glob("nvidia[0-9]*"))
        for path in (CONTROL_DEVICE, *cards):
            self._files.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        self._root = self._allocate(0, 0, _ROOT)
        attached = self._ask(self._root, _GET_ATTACHED_IDS, bytes(128))
        for gpu in struct.unpack("<32I", attached):
            if gpu != _NO_GPU:
                handle = _FIRST_HANDLE + 2 * len(self._subdevices)
                self._subdevices.append(self._open(gpu, handle))

    def close(self) -> None:
        for descriptor in self._files:
            os.close(descriptor)

    def memory(self, pids: list[int]) -> dict[int, tuple[list[int], int]]:
        """Bytes by pid: a process's own on each card, and what it has of others'.

        Memory that has lost its first owner counts as the other's own.

        Raises:
            OSError: the driver does not report it.
        """
        owned: dict[int, list[int]] = {pid: [] for pid in pids}
        opened = dict.fromkeys(pids, 0)
        for first in range(0, len(pids), _PID_INFO_COUNT):
            some = pids[first : first + _PID_INFO_COUNT]
            for subdevice in self._subdevices:
                answer = self._ask(subdevice, _GET_PID_INFO, pack_pids(some))
                for pid, own, borrowed in unpack_pids(answer):
                    owned[pid].append(own)
                    opened[pid] += borrowed
        return {pid: (owned[pid], opened[pid]) for pid in pids}

    def _open(self, gpu: int, handle: int) -> int:
        request = _ID_INFO.pack(gpu, 0, 0, 0, 0, 0, 0, 0)
        info = _ID_INFO.unpack(self._ask(self._root, _GET_ID_INFO, request))
        parameters = _DEVICE_PARAMETERS.pack(info[2], 0, 0, 0, 0, 0, 0, 0, 0)
        device = self._allocate(self._root, handle, _DEVICE, parameters)
        parameters = struct.pack("<I", info[3])
        return self._allocate(device, handle + 1, _SUBDEVICE, parameters)

    def _allocate(
        self, parent: int, handle: int, kind: int, parameters: bytes = b""
    ) -> int:
        root = self._root if parent else 0
        words = (root, parent, handle, kind)
        return self._call(_ESCAPE_ALLOCATE, words, parameters)[0][2]

    def _ask(self, target: int, command: int, parameters: bytes) -> bytes:
        words = (self._root, target, command, 0)
        return self._call(_ESCAPE_CONTROL, words, parameters)[1]

    def _call(
        self, escape: int, words: tuple[int, int, int, int], parameters: bytes
    ) -> tuple[tuple[int, ...], bytes]:
        buffer = ctypes.create_string_buffer(parameters, max(1, len(parameters)))
        address = ctypes.addressof(buffer) if parameters else 0
        call = bytearray(_CALL.pack(*words, address, len(parameters), 0))
        fcntl.ioctl(self._files[0], _read_write(escape, len(call)), call)
        answer = _CALL.unpack(call)
        if answer[-1]:
            raise OSError(0, f"the driver answers {answer[-1]:#x} to {words[2]:#x}")
        return answer, buffer.raw[: len(parameters)]


def pack_pids(pids: list[int]) -> bytes:
    entries = b"".join(_PID_INFO.pack(pid, *[0] * 10) for pid in pids)
    size = 8 + _PID_INFO_COUNT * _PID_INFO.size
    return (struct.pack("<I4x", len(pids)) + entries).ljust(size, b"\0")


def unpack_pids(answer: bytes) -> list[tuple[int, int, int]]:
    """Unpack the answer about processes' memory: pid, own bytes, others' bytes.

    Raises:
        OSError: one of them could not be read.
    """
    (count,) = struct.unpack_from("<I", answer)
    found = []
    for number in range(count):
        fields = _PID_INFO.unpack_from(answer, 8 + number * _PID_INFO.size)
        pid, _, result, private, owned, borrowed = fields[:6]
        if result:
            raise OSError(0, f"the driver answers {result:#x} about process {pid}")
        found.append((pid, private + owned, borrowed))
    return found


def _read_write(number: int, size: int) -> int:
    return 3 << 30 | size << 16 | ord("F") << 8 | number


class Library:
    def __init__(self) -> None:
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL(LIBRARY)
        except OSError:
            self._library = None
        self._resources: KernelDriver | None = None
        self._asking = threading.Lock()

    def begin(self) -> dict[str, Any]:
        """Initialise; the cards, or the code of what went wrong."""
        if self._library is None:
            return {"code": NO_LIBRARY}
        code = self._call("cuInit", 0)
        if code:
            return {"code": code}
        count = ctypes.c_int()
        code = self._call("cuDeviceGetCount", ctypes.byref(count))
        cards = [self._card(number) for number in range(count.value)]
        supported = hasattr(self._library, "cuCheckpointProcessCheckpoint")
        return {
            "code": code if supported else NOT_FOUND,
            "cards": cards,
            "peers": self._peers(count.value),
        }

    def state(self, request: dict[str, Any]) -> dict[str, Any]:
        """State of a process: 0 running, 1 locked, 2 checkpointed, 3 failed."""
        state = ctypes.c_int(-1)
        code = self._process("GetState", request["pid"], state)
        return {"code": code, "state": state.value}

    def lock(self, request: dict[str, Any]) -> dict[str, Any]:
        arguments = (ctypes.c_uint * (ARGUMENT_BYTES // 4))(request["milliseconds"])
        return {"code": self._process("Lock", request["pid"], arguments)}

    def checkpoint(self, request: dict[str, Any]) -> dict[str, Any]:
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
        return {"code": self._process("Unlock", request["pid"])}

    def thread(self, request: dict[str, Any]) -> dict[str, Any]:
        thread = ctypes.c_int()
        code = self._process("GetRestoreThreadId", request["pid"], thread)
        return {"code": code, "thread": thread.value}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._asking:
            try:
                return {"code": 0, "memory": self._asked().memory(request["pids"])}
            except OSError as error:
                if self._resources is not None:
                    self._resources.close()
                self._resources = None
                return {"code": NOT_FOUND, "name": str(error)}

    def _asked(self) -> KernelDriver:
        if self._resources is None:
            self._resources = KernelDriver()
            self._resources.begin()
        return self._resources

    def name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if code == NO_LIBRARY or self._call("cuGetErrorName", code, ctypes.byref(text)):
            return str(code)
        return (text.value or b"").decode()

    def _process(self, call: str, pid: int, arguments: Any = None) -> int:
        if arguments is None:
            arguments = (ctypes.c_uint64 * (ARGUMENT_BYTES // 8))()
        return self._call(f"cuCheckpointProcess{call}", pid, ctypes.byref(arguments))

    def _card(self, number: int) -> dict[str, Any]:
        device = ctypes.c_int()
        uuid = ctypes.create_string_buffer(UUID_BYTES)
        name = ctypes.create_string_buffer(TOTAL_NAME)
        self._call("cuDeviceGet", ctypes.byref(device), number)
        self._call("cuDeviceGetUuid_v2", uuid, device)
        self._call("cuDeviceGetName", name, len(name), device)
        return {
            "uuid": uuid.raw.hex(),
            "name": name.value.decode(errors="replace"),
        }

    def _peers(self, count: int) -> bool:
        """Whether a card can read another's memory; also where the driver is silent."""
        can = ctypes.c_int()
        return any(
            self._call("cuDeviceCanAccessPeer", ctypes.byref(can), one, other)
            or can.value
            for one in range(count)
            for other in range(count)
            if one != other
        )

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            return NOT_FOUND


def main() -> None:
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
            facts.setdefault("name", library.name(facts["code"]))
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
