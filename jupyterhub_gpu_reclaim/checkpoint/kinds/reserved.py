"""Addresses that a program has set aside: more of them than a machine has memory."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return, Session
    from jupyterhub_gpu_reclaim.common.models import Finding

# <asm-generic/mman-common.h>
_NORESERVE: Final = 0x4000
#: Of the 128 TiB that x86 has for a program, CRIU's own program lies in the middle.
_MOST_ADDRESSES: Final = 80 << 40


class ReservedAddresses(Kind):
    """Large areas without access, as MariaDB and Julia map them to open parts later."""

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            # CRIU makes all areas of a process aside first, beside its parent's.
            total = sum(
                int(procfs.status(pid).get("VmSize", "0 kB").split()[0]) << 10
                for pid in (one.pid, one.process.ppid)
            )
            if total > _MOST_ADDRESSES:
                size = text.size(total)
                what = f"has reserved too much memory ({size} with its parent)"
                yield one.found(Reason.PROCESS_UNSUPPORTED, what=what)

    def rewrite(self, back: Return) -> None:
        # CRIU maps private memory writable first, and Linux refuses that at once for an
        # area larger than all of its memory (vm.overcommit_memory 0), unless it is not
        # to be counted. Only there: the flag stays, and keeps areas from being joined.
        most = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        for pid in back.saved.credentials:
            for vma in back.images.memory(pid).vmas:
                if vma.flags & mmap.MAP_PRIVATE and vma.end - vma.start > most:
                    vma.flags |= _NORESERVE
