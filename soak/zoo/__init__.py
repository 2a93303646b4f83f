"""What the sessions of a soak hold: each animal is state that is hard to save.

An animal lives in a kernel and is asked two things there (:mod:`soak.zoo.keeper`):
``look()`` tells a digest of what it holds, which is the same until ``work()`` changes
it, and a number that may only grow, of what goes on by itself.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from shutil import which


@dataclass(frozen=True)
class Animal:
    """What one session holds, and how often it is drawn.

    Args:
        name: in the tables.
        home: module and class, below this package.
        kernels: that have one each.
        terminal: whether a terminal with ``vim`` and ``top`` stands beside.
        needs: a package that is not everywhere.
        program: likewise a program.
        share: how often it is drawn, beside the others.
        cycles: how often its session is suspended before the next animal's turn.
    """

    name: str
    home: str
    kernels: int = 1
    terminal: bool = False
    needs: str = ""
    program: str = ""
    share: float = 1.0
    cycles: int = 40

    def here(self) -> bool:
        """Whether this Python, and this machine, have what it needs."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        package = not self.needs or importlib.util.find_spec(self.needs)
        return bool(package and (not self.program or which(self.program, path=path)))


ANIMALS = (
    Animal("pandas", "memory:Frame", needs="pandas"),
    Animal("model", "memory:Model", needs="sklearn"),
    Animal("gigabyte", "memory:Gigabyte", share=0.3, cycles=10),
    Animal("matplotlib", "display:Figure", needs="matplotlib"),
    Animal("widgets", "display:Widgets", needs="ipywidgets"),
    Animal("threads", "concurrency:Threads"),
    Animal("asyncio", "concurrency:Tasks"),
    Animal("timers", "concurrency:Timers"),
    Animal("multiprocessing", "processes:Workers"),
    Animal("pipes", "processes:Pipes"),
    Animal("sockets", "sockets:Sockets"),
    Animal("sqlite", "files:Transactions"),
    Animal("files", "files:Files"),
    Animal("terminals", "concurrency:Nothing", terminal=True),
    Animal("kernels", "concurrency:Nothing", kernels=20, share=0.2, cycles=8),
    # What was committed once and never came back.
    Animal("unnamed files", "files:Unnamed"),
    Animal("in flight", "sockets:InFlight"),
    Animal("open memory", "memory:OpenMemory"),
    Animal("kernel AIO", "memory:AsynchronousFile"),
    Animal("mariadb", "processes:Database", needs="pymysql", program="mariadbd"),
)

#: On a machine with an NVIDIA card, without any framework.
GPU_ANIMALS = (
    Animal("device memory", "gpu:DeviceMemory"),
    Animal("streams", "gpu:Streams"),
    Animal("pinned", "gpu:PinnedMemory"),
    Animal("two processes", "gpu:TwoProcesses"),
)
