"""What the sessions of a soak hold: each animal is state that is hard to save.

An animal lives in a kernel and is asked two things there (:mod:`soak.zoo.keeper`):
``look()`` tells a digest of what it holds, which is the same until ``work()`` changes
it, and a number that may only grow, of what goes on by itself.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Animal:
    """What one session holds, and how often it is drawn.

    Args:
        name: in the tables.
        home: module and class, below this package.
        kernels: that have one each.
        terminal: whether a terminal with ``vim`` and ``top`` stands beside.
        needs: a package that is not everywhere.
        share: how often it is drawn, beside the others.
        cycles: how often its session is suspended before the next animal's turn.
    """

    name: str
    home: str
    kernels: int = 1
    terminal: bool = False
    needs: str = ""
    share: float = 1.0
    cycles: int = 40

    def here(self) -> bool:
        """Whether this Python has what it needs."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


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
)

#: On a machine with an NVIDIA card, without any framework.
GPU_ANIMALS = (
    Animal("device memory", "gpu:DeviceMemory"),
    Animal("streams", "gpu:Streams"),
    Animal("pinned", "gpu:PinnedMemory"),
    Animal("two processes", "gpu:TwoProcesses"),
)
