"""``make demo``: start everything, say what to open, wait. ``--check``: play a user."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
from pathlib import Path

from demo.check import check
from demo.stack import Stack, StackError

WELCOME = """
  JupyterHub with suspended sessions is running on this machine.

    Open        {url}
    Log in as   any name (admin: "admin"), password  {password}

  Start a server, a kernel, a terminal; then close the tab or leave it alone. After
  {idle} s without use the session is saved and its processes end. Open the lab again:
  the same kernels, variables and terminals are back.

    What every session does, and why:  {url}/services/gpu-reclaim/
    Logs, saved sessions, homes:       {folder}

  Ctrl-C ends everything.
"""


def main() -> int:
    """Run the demo; returns the exit status."""
    options = argparse.ArgumentParser(prog="demo", description=__doc__)
    options.add_argument("--check", action="store_true", help="play a user, then end")
    options.add_argument("--port", type=int, default=8000, help="of the demo (8000)")
    options.add_argument("--idle-after", type=int, default=60, metavar="SECONDS")
    options.add_argument("--folder", type=Path, default=Path(".demo"))
    chosen = options.parse_args()
    try:
        if chosen.check:
            return check(chosen.folder.with_name(chosen.folder.name + "-check"))
        return show(chosen.folder, chosen.port, chosen.idle_after)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1


def show(folder: Path, port: int, idle_after: int) -> int:
    """Start the stack and wait for Ctrl-C."""
    shutil.rmtree(folder, ignore_errors=True)
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    with Stack(folder, port=port, idle_after=idle_after) as stack:
        print(
            WELCOME.format(
                url=stack.url,
                password=stack.password,
                idle=idle_after,
                folder=stack.folder,
            ),
            flush=True,
        )
        while not ended.wait(1):
            for name, part in stack.parts.items():
                if part.poll() is not None:
                    print(f"{name} has ended:\n{stack.log(name)[-3000:]}")
                    return 1
        print("ending …", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
