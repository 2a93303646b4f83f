"""Two people who are there already when a demo with simulated GPUs begins.

Grace computes for as long as the demo runs. Alan holds memory and has left: soon his
session is suspended, and what he held is free.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import requests

from demo.user import User, UserError

if TYPE_CHECKING:
    from demo.stack import Stack

TAKE = "from demo.simulated_gpu import GpuMemory; memory = GpuMemory({gib}, gpu={gpu})"
#: Name → the cells that they run; the last one of Grace's does not end.
GUESTS = {
    "grace": (TAKE.format(gib=10, gpu=0), "while True: memory.compute(60)"),
    "alan": (TAKE.format(gib=16, gpu=1),),
}


def come(stack: Stack) -> None:
    """Let them come while the demo goes on."""
    threading.Thread(target=_come, args=(stack,), daemon=True).start()


def _come(stack: Stack) -> None:
    """One after the other: somebody who tries the demo starts a server meanwhile."""
    for name in GUESTS:
        visit(stack, name)


def visit(stack: Stack, name: str) -> None:
    """Let one of them come and run their cells; a failure is told, and no more."""
    try:
        user = User.arrived(stack, name)
        with user.server().start_kernel() as kernel:
            first, *others = GUESTS[name]
            kernel.run(first)
            for cell in others:
                kernel.send(cell)
    except (UserError, requests.RequestException, OSError) as error:
        if "hub" not in stack.parts:
            return  # the demo has been ended meanwhile
        print(f"{name}, a guest of the demo, did not come: {error}", file=sys.stderr)
