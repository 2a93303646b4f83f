"""Protection of memory that CRIU does not know: it would be gone in silence."""

from __future__ import annotations

import bisect
import re
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Session
    from jupyterhub_gpu_reclaim.common.models import Finding

#: The first line of a mapping: its mode, and its name, if it has one.
_HEAD: Final = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) \S+ \S+ \S+ *(.*)$", re.MULTILINE
)
#: What a mapping has that CRIU does not know; few processes have one.
_MARK: Final = re.compile(
    r"^(?:(?P<key>ProtectionKey: +[1-9])|(?P<sealed>VmFlags:.* sl(?= |$)))",
    re.MULTILINE,
)
_UPROBES: Final = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S{4} \S+ \S+ \S+ +\[uprobes\]$", re.MULTILINE
)
#: Memory that can only be run: the kernel gives it a key by itself, again and again.
_RUN_ALONE: Final = "--x"


class Protection(Kind):
    """Sealed memory, protection keys, uprobes.

    The kernel tells of it in ``/proc/PID/smaps`` alone, for which it looks at every
    page: some 80 ms for each GiB that is not in huge pages. So it is read before the
    session is frozen.
    """

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            for kind in unsupported(procfs.text(one.pid, "smaps")):
                yield one.holds(kind)


def unsupported(smaps: str) -> list[str]:
    found = {"uprobes: it is traced"} if _UPROBES.search(smaps) else set()
    marks = list(_MARK.finditer(smaps))
    heads = list(_HEAD.finditer(smaps)) if marks else []
    starts = [head.start() for head in heads]
    for mark in marks:
        mode, name = heads[bisect.bisect(starts, mark.start()) - 1].groups()
        # The kernel's own: some have them sealed, and they are made again.
        if mark["sealed"] and not name.startswith("[v"):
            found.add("sealed memory (mseal)")
        if mark["key"] and not mode.startswith(_RUN_ALONE):
            found.add("memory with a protection key (pkey_mprotect)")
    return sorted(found)
