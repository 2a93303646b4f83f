"""Makes System V objects in a session's IPC namespace; a short-lived helper.

Started by :mod:`~jupyterhub_gpu_reclaim.checkpoint.kinds.system_v` as ``python3 -I -S
system_v_maker.py`` in the control groups of the session, so that it is charged with the
memory. It enters the IPC namespace alone. Standard library only.

On its input come a line of JSON with the objects (:func:`make`), then the contents of
the segments. It writes ``made`` when all are there. ``lend ID UID`` lets that user
attach a segment whose mode forbids it now; with ``keep``, modes and owners are as they
were, and it ends. Without that word, all that it made goes again.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import sys
from typing import IO, Any

CLONE_NEWIPC = 0x08000000
IPC_CREAT, IPC_EXCL, IPC_RMID, IPC_SET, IPC_STAT = 0o1000, 0o2000, 0, 1, 2
SETALL, SHM_LOCK = 17, 11
SHM_DEST, SHM_LOCKED = 0o1000, 0o2000
MODE, OWNERS = 0o777, 0o700
BLOCK = 1 << 20
NO_ADDRESS = ctypes.c_void_p(-1).value
# The same numbers on every architecture (<asm-generic/unistd.h>, <linux/mount.h>).
FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432
FSCONFIG_CMD_CREATE = 6

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]


class Permissions(ctypes.Structure):
    """<linux/ipc.h>, struct ipc64_perm, as libc has it on 64-bit machines."""

    _fields_ = (
        ("key", ctypes.c_int),
        *((name, ctypes.c_uint) for name in ("uid", "gid", "cuid", "cgid", "mode")),
        ("rest", ctypes.c_ulong * 3),
    )


class Status(ctypes.Structure):
    """The part of ``shmid_ds``, ``semid_ds`` and ``msqid_ds`` that IPC_SET reads."""

    _fields_ = (
        ("perm", Permissions),
        ("times", ctypes.c_ulong * 5),
        ("qbytes", ctypes.c_ulong),  #: of ``msqid_ds``
        ("rest", ctypes.c_ulong * 16),
    )


def checked(result: int, name: str) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return result


def open_proc() -> int:
    """A fresh, writable /proc; our own one may be read-only in a container."""
    context = checked(libc.syscall(FSOPEN, b"proc", 1), "/proc")
    try:
        made = libc.syscall(FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        checked(made, "/proc")
        return checked(libc.syscall(FSMOUNT, context, 1, 0), "/proc")
    finally:
        os.close(context)


class Maker:
    def __init__(self, proc: int) -> None:
        self._proc = proc
        self._made: list[tuple[str, int]] = []
        self._doomed: list[int] = []
        self._segments: dict[int, dict[str, Any]] = {}
        self._lent: set[int] = set()

    def semaphores(self, one: dict[str, Any]) -> None:
        values = one["values"]
        number = self._new("sem", one, len(values))
        array = (ctypes.c_ushort * max(1, len(values)))(*values)
        checked(libc.semctl(number, 0, SETALL, array), "semctl")
        self._set("sem", number, one)

    def queue(self, one: dict[str, Any]) -> None:
        """A queue with its messages, which may be more than its limit is now."""
        number = self._new("msg", one)
        messages = [(kind, base64.b64decode(text)) for kind, text in one["messages"]]
        held = max(len(messages), sum(len(data) for _, data in messages))
        self._set("msg", number, {**one, "qbytes": max(one["qbytes"], held)})
        for kind, data in messages:
            message = ctypes.create_string_buffer(
                kind.to_bytes(8, sys.byteorder) + data, 8 + max(1, len(data))
            )
            sent = libc.msgsnd(number, message, ctypes.c_size_t(len(data)), 0o4000)
            checked(sent, "msgsnd")
        self._set("msg", number, one)

    def segment(self, one: dict[str, Any], contents: IO[bytes]) -> None:
        size = one["size"]
        number = self._new("shm", one, size, more=one["huge"])
        address = libc.shmat(number, None, 0)
        checked(-1 if address == NO_ADDRESS else 0, "shmat")
        for start, length in one["pages"]:
            area = (ctypes.c_char * length).from_address(address + start)
            view, at = memoryview(area).cast("B"), 0
            while at < length:
                count = contents.readinto(view[at : at + BLOCK])  # type: ignore[attr-defined]
                if not count:
                    raise OSError(0, "it is cut off", "segment")
                at += count
        checked(libc.shmdt(ctypes.c_void_p(address)), "shmdt")
        self._set("shm", number, one)
        self._segments[number] = one
        if one["mode"] & SHM_LOCKED:
            libc.shmctl(number, SHM_LOCK, None)  # as far as its limit goes
        if one["mode"] & SHM_DEST:
            self._doomed.append(number)

    def keep(self) -> None:
        """Keep the objects; what was removed while attached goes with its last user."""
        for number in self._lent:
            self._set("shm", number, self._segments[number])
        for number in self._doomed:
            checked(libc.shmctl(number, IPC_RMID, None), "shmctl")
        self._made.clear()

    def lend(self, number: int, uid: int) -> None:
        """Let one user attach it who had it attached when that was allowed."""
        changed = {"uid": uid, "mode": self._segments[number]["mode"] | OWNERS}
        self._set("shm", number, {**self._segments[number], **changed})
        self._lent.add(number)

    def remove(self) -> None:
        for kind, number in self._made:
            self._control(kind, number, IPC_RMID, None)

    def _new(self, kind: str, one: dict[str, Any], *size: int, more: int = 0) -> int:
        self._remove_former(kind, one)
        counter = f"sys/kernel/{kind}_next_id"
        descriptor = os.open(counter, os.O_WRONLY, dir_fd=self._proc)
        try:
            os.write(descriptor, str(one["id"]).encode())
        finally:
            os.close(descriptor)
        flags = IPC_CREAT | IPC_EXCL | one["mode"] & MODE | more
        os.setresgid(-1, one["cgid"], -1)
        os.setresuid(-1, one["cuid"], -1)
        try:
            number = int(getattr(libc, f"{kind}get")(one["key"], *size, flags))
        finally:
            os.setresuid(-1, 0, -1)
            os.setresgid(-1, 0, -1)
        self._made.append((kind, checked(number, f"{kind}get")))
        if number != one["id"]:
            raise OSError(0, f"number {one['id']} is taken", f"{kind}get")
        return number

    def _remove_former(self, kind: str, one: dict[str, Any]) -> None:
        """Remove what an attempt that was ended in its middle has left."""
        status = Status()
        if self._control(kind, one["id"], IPC_STAT, ctypes.byref(status)) == -1:
            return
        found = status.perm
        if (found.key, found.cuid) == (one["key"], one["cuid"]):
            self._control(kind, one["id"], IPC_RMID, None)

    def _set(self, kind: str, number: int, one: dict[str, Any]) -> None:
        status = Status()
        checked(self._control(kind, number, IPC_STAT, ctypes.byref(status)), "stat")
        status.perm.uid, status.perm.gid = one["uid"], one["gid"]
        status.perm.mode = one["mode"] & MODE
        if kind == "msg":
            status.qbytes = one["qbytes"]
        checked(self._control(kind, number, IPC_SET, ctypes.byref(status)), "set")

    @staticmethod
    def _control(kind: str, number: int, command: int, argument: Any) -> int:
        control = getattr(libc, f"{kind}ctl")
        first = (number, 0) if kind == "sem" else (number,)
        return int(control(*first, command, argument))


def make(maker: Maker, contents: IO[bytes]) -> None:
    wanted = json.loads(contents.readline())
    for one in wanted["sem"]:
        maker.semaphores(one)
    for one in wanted["msg"]:
        maker.queue(one)
    for one in wanted["shm"]:
        maker.segment(one, contents)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    checked(libc.setns(int(sys.argv[1]), CLONE_NEWIPC), "setns")
    maker = Maker(open_proc())
    try:
        make(maker, sys.stdin.buffer)
        say("made")
        while order := sys.stdin.buffer.readline().split():
            if order == [b"keep"]:
                maker.keep()
                say("kept")
                return 0
            maker.lend(int(order[1]), int(order[2]))
            say("lent")
    except OSError as error:
        with contextlib.suppress(OSError):
            say(f"{error.filename}: {error.strerror}")
    finally:
        maker.remove()
    return 1


if __name__ == "__main__":
    sys.exit(main())
