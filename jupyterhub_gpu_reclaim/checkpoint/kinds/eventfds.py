"""Eventfds that CRIU would make otherwise: semaphores, and large counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Session
    from jupyterhub_gpu_reclaim.common.models import Finding

_TARGET: Final = "anon_inode:[eventfd]"
#: eventfd(2) takes no more at once.
_MOST: Final = (1 << 32) - 1


class Eventfds(Kind):
    """Eventfds that are semaphores, or count to 2³² and further.

    CRIU (4.2: ``eventfd.c``) does not save EFD_SEMAPHORE, and makes one with the low 32
    bits of its counter.
    """

    asked_again = True

    def preflight(self, seen: Session) -> Iterator[Finding]:
        for one in seen.programs:
            for each in one.descriptors:
                if each.target != _TARGET:
                    continue
                facts = one.facts(each.fd)
                is_large = int(facts.get("eventfd-count", "0"), 16) > _MOST
                if is_large or facts.get("eventfd-semaphore") == "1":
                    kind = "an eventfd that is a semaphore, or that is nearly full"
                    yield one.found(Reason.HANDLE_UNSUPPORTED, kind=kind)
