"""Hold every process that a helper makes, at its birth and when it becomes a program.

``python3 birth_watch.py PID``: traces that process and its children. At each such
moment it writes a JSON line with what can be reached from the process, as
:func:`reachable` says. A child is let go for good once it has become a program.
"""

import ctypes
import json
import os
import stat
import sys
from pathlib import Path

CONT, DETACH, SEIZE = 7, 17, 0x4206
FORK, EXEC, EXIT = 2, 0x10, 0x40
EVENT_EXEC, EVENT_EXIT, EVENT_STOP = 4, 6, 128
WALL = 0x40000000


def mounts(pid: int | str = "self") -> set[str]:
    return {
        line.split()[0]
        for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    }


def mount_of(descriptor: int) -> str:
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return text.partition("mnt_id:")[2].split()[0]


def climb(descriptor: int) -> int:
    """The topmost folder that ``..`` leads to; takes the descriptor over."""
    while True:
        above = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=descriptor)
        same = os.path.samestat(os.fstat(above), os.fstat(descriptor))
        same = same and mount_of(above) == mount_of(descriptor)
        os.close(descriptor)
        descriptor = above
        if same:
            return descriptor


def reachable(pid: int) -> list[str]:
    """Every way from a process into a mount that we see: its folders and its files.

    A file counts where it can be opened for writing once nobody runs it.
    """
    found = []
    names = [f"fd/{one.name}" for one in Path(f"/proc/{pid}/fd").iterdir()]
    for name in ["root", "cwd", "exe", *names]:
        path = Path(f"/proc/{pid}/{name}")
        try:
            descriptor = os.open(path, os.O_PATH)
        except OSError:
            continue
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            descriptor = climb(descriptor)
        # Pipes and sockets are on mounts of the kernel's, devices lead nowhere.
        leads = stat.S_ISDIR(kind) or stat.S_ISREG(kind)
        if leads and mount_of(descriptor) in mounts():
            found.append(f"{name} -> {path.readlink()}")
        os.close(descriptor)
    return found


def namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def ptrace(request: int, pid: int, data: int = 0) -> None:
        done = libc.ptrace(
            ctypes.c_long(request),
            ctypes.c_long(pid),
            ctypes.c_void_p(0),
            ctypes.c_void_p(data),
        )
        if done == -1:
            raise OSError(ctypes.get_errno(), "ptrace")

    helper = int(sys.argv[1])
    ptrace(SEIZE, helper, FORK | EXEC | EXIT)
    print("ready", flush=True)
    waiting = {helper}
    while waiting:
        pid, status = os.waitpid(-1, WALL)
        if not os.WIFSTOPPED(status):
            waiting.discard(pid)
            continue
        waiting.add(pid)
        event, number = status >> 16, os.WSTOPSIG(status)
        if pid != helper and event in {EVENT_STOP, EVENT_EXEC, EVENT_EXIT}:
            # What is made of the interpreter ends with it; nobody may look at it.
            ways = [
                one
                for one in reachable(pid)
                if event == EVENT_EXEC or not one.startswith("exe ")
            ]
            line = {"event": event, "inside": namespace(pid), "ways": ways}
            print(json.dumps(line), flush=True)
        if pid != helper and event == EVENT_EXEC:
            ptrace(DETACH, pid)
            waiting.discard(pid)
            continue
        ptrace(CONT, pid, 0 if event else number)


if __name__ == "__main__":
    main()
