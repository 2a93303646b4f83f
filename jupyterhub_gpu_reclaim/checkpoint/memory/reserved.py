"""Addresses that a program has set aside: more of them than a machine has memory.

MariaDB and Julia map terabytes without access, and open parts of them later. CRIU maps
private memory writable first, and Linux refuses that at once for an area larger than
all of its memory (``vm.overcommit_memory`` 0), unless it is not to be counted.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Final

# <asm-generic/mman-common.h>
_NORESERVE: Final = 0x4000


def do_not_count(memory: Any) -> None:
    """Have CRIU map what this machine would refuse as memory that is not counted.

    Only that: the flag stays, and keeps an area from growing together with others.

    Args:
        memory: a process' ``mm_entry``, changed in place.
    """
    most = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    for vma in memory.vmas:
        if vma.flags & mmap.MAP_PRIVATE and vma.end - vma.start > most:
            vma.flags |= _NORESERVE
