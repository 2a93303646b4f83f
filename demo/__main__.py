"""``make demo``: start everything, say what to open, wait. ``--check``: play a user."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from demo import guests, processes
from demo.check import check
from demo.simulated_gpu import GPUS
from demo.stack import Stack, StackError
from demo.user import UserError
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

#: Long enough to read a warning, and to press its button.
WARN_SECONDS = 30
#: For a server's first start: three of them at once, of packages never used before.
START_SECONDS = 150
#: Bytes for homes and suspended sessions of some people.
ROOM = 10**9

WELCOME = """
  JupyterHub with suspended sessions is running on this machine.

    Open        {url}
    Log in as   any name (admin: "admin"), password  {password}

  To try:

    1. As "ada": start the server, open a notebook, run  import os; x = 42; os.getpid()
    2. As "admin", in a private window: {url}/services/gpu-reclaim/all
       has every session, what it does, and why it is not suspended.
    3. Leave the notebook alone. After {idle} s its tab warns and counts; {warn} s later
       the session is suspended: its processes have ended.
    4. Press Resume in the tab, and run  x, os.getpid()  in the next cell: the same
       kernel. Or close the tab in step 3, and open the lab again.

{gpus}    Logs, suspended sessions, homes:  {folder}

  Ctrl-C ends everything.
"""

#: What it says beside that on a machine without a GPU.
SIMULATED = """\
    There is no GPU here, so {many} are simulated: nothing can be computed on them. The
    guest "grace" keeps one busy; "alan" has left, and {soon} s later what he held is
    free: {url}/services/gpu-reclaim/nodes
    A notebook takes memory of them, too:

       from demo.simulated_gpu import GpuMemory
       memory = GpuMemory(8)    # GiB; memory.compute(30) looks busy for 30 s

"""


def main() -> int:
    """Run the demo; returns the exit status."""
    options = argparse.ArgumentParser(prog="demo", description=__doc__)
    options.add_argument("--check", action="store_true", help="play a user, then end")
    options.add_argument("--port", type=port, default=8000, help="of the demo (8000)")
    options.add_argument("--idle-after", type=int, default=60, metavar="SECONDS")
    options.add_argument("--folder", type=Path, default=Path(".demo"))
    chosen = options.parse_args()
    if os.geteuid() != 0:
        return fail("Run this as root: sessions are suspended by CRIU, which needs it.")
    folder = chosen.folder.resolve()
    if chosen.check:
        folder = folder.with_name(folder.name + "-check")
    try:
        if processes.claim(folder) is None:
            return fail(f"Another run has {folder}: end that first.")
        if why := cramped(folder):
            return fail(why)
        if chosen.check:
            return check(folder)
        if not free(chosen.port):
            return fail(
                f"Port {chosen.port} of 127.0.0.1 is in use. End what has it, or take"
                f" another one: make demo PORT={chosen.port + 1}"
            )
        return show(folder, chosen.port, chosen.idle_after)
    except (StackError, UserError) as error:
        return fail(str(error))


def fail(sentence: str) -> int:
    """Say why it does not go on; returns the exit status."""
    print(sentence, file=sys.stderr)
    return 1


def cramped(folder: Path, needed: int = ROOM) -> str:
    """Why the disk has too little room for a demo, in a sentence; empty if it has."""
    left = shutil.disk_usage(folder).free
    if left >= needed:
        return ""
    return (
        f"The disk of {folder} has {size(left)} left, and the demo needs {size(needed)}"
        " for homes and suspended sessions. Make room there."
    )


def free(at: int) -> bool:
    """Whether that port of 127.0.0.1 can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", at))
        except OSError:
            return False
    return True


def port(text: str) -> int:
    """A TCP port, as it is typed."""
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError("a port is a number from 1 to 65535")
    return number


def show(folder: Path, at: int, idle_after: int) -> int:
    """Start the stack and wait for Ctrl-C, or for the terminal to be closed."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    settings = {
        "idle_after": idle_after,
        "warn_for": WARN_SECONDS,
        "http_timeout": START_SECONDS,
    }
    none_here = Nvml().measure(time.time()) == []
    with Stack(folder, port=at, simulated_gpus=none_here, **settings) as stack:
        print(welcome(stack, idle_after), flush=True)
        if stack.simulated_gpus:
            guests.come(stack)
        while not ended.wait(1):
            for name, part in stack.parts.items():
                if part.poll() is not None:
                    raise stack.failure(name, "has ended")
    return 0


def welcome(stack: Stack, idle_after: int) -> str:
    """What to open, and how to log in."""
    soon = idle_after + WARN_SECONDS
    gpus = SIMULATED.format(many=GPUS, url=stack.url, soon=soon)
    return WELCOME.format(
        gpus=gpus if stack.simulated_gpus else "",
        url=stack.url,
        password=stack.password,
        idle=idle_after,
        warn=WARN_SECONDS,
        folder=stack.folder,
    )


if __name__ == "__main__":
    sys.exit(main())
