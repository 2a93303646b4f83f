"""Protection of memory that CRIU does not know: it would be gone in silence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Session
    from jupyterhub_gpu_reclaim.common.models import Finding

#: The first line of a mapping: its mode, and its name, if it has one.
_HEAD: Final = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) \S+ \S+ \S+ *(.*)$", re.MULTILINE
)
_KEY: Final = re.compile(r"^ProtectionKey: +([1-9]\d*)$", re.MULTILINE)
_SEALED: Final = re.compile(r"^VmFlags:.* sl( |$)", re.MULTILINE)
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
                yield one.found(Reason.HANDLE_UNSUPPORTED, kind=kind)


def unsupported(smaps: str) -> list[str]:
    """The kinds of it that a process has, in words."""
    return sorted({kind for one in _mappings(smaps) for kind in _kinds(*one)})


def _mappings(smaps: str) -> Iterator[tuple[str, str, str]]:
    heads = list(_HEAD.finditer(smaps))
    starts = [*(head.start() for head in heads), len(smaps)]
    for head, end in zip(heads, starts[1:], strict=True):
        yield head[1], head[2], smaps[head.end() : end]


def _kinds(mode: str, name: str, fields: str) -> Iterator[str]:
    if name == "[uprobes]":
        yield "uprobes: it is traced"
    # The kernel's own: some have them sealed, and they are made again.
    if _SEALED.search(fields) and not name.startswith("[v"):
        yield "sealed memory (mseal)"
    if _KEY.search(fields) and not mode.startswith(_RUN_ALONE):
        yield "memory with a protection key (pkey_mprotect)"
