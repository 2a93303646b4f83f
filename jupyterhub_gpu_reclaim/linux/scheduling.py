"""What threads have in common (kcmp(2)). A thread that has gone is an OSError."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.linux.architecture import call

if TYPE_CHECKING:
    from collections.abc import Iterable


KCMP_FILE, KCMP_VM, KCMP_FILES, KCMP_FS = 0, 1, 2, 3  # <linux/kcmp.h>


def shares(one: int, other: int, kind: int) -> bool:
    """Whether two tasks share that: memory, table of files, or folders."""
    return compared(one, other, kind) == 0


def sharers(tids: Iterable[int], kind: int) -> list[tuple[int, int]]:
    """Pairs of those tasks that share that; one that has ended shares nothing.

    The kernel puts any two in an order, so not every pair has to be asked for.
    """

    def order(one: int, other: int) -> int:
        try:
            return (0, -1, 1)[compared(one, other, kind)]
        except OSError:
            return -1

    ranked = sorted(tids, key=functools.cmp_to_key(order))
    return [pair for pair in itertools.pairwise(ranked) if order(*pair) == 0]


def compared(one: int, other: int, kind: int, *of_each: int) -> int:
    """What kcmp(2) says; 0: both have the same."""
    return call("kcmp", one, other, kind, *(of_each or (0, 0)))
