"""Addresses that a program has set aside: more of them than a machine has memory."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return

# <asm-generic/mman-common.h>
_NORESERVE: Final = 0x4000


class ReservedAddresses(Kind):
    """Large areas without access, as MariaDB and Julia map them to open parts later."""

    def rewrite(self, back: Return) -> None:
        # CRIU maps private memory writable first, and Linux refuses that at once for an
        # area larger than all of its memory (vm.overcommit_memory 0), unless it is not
        # to be counted. Only there: the flag stays, and keeps areas from being joined.
        most = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        for pid in back.saved.credentials:
            for vma in back.images.memory(pid).vmas:
                if vma.flags & mmap.MAP_PRIVATE and vma.end - vma.start > most:
                    vma.flags |= _NORESERVE
