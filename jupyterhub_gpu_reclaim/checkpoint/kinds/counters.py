"""Descriptors that count: eventfd(2) and timerfd_create(2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return, Session
    from jupyterhub_gpu_reclaim.common.models import Finding

_EVENTFD: Final = "anon_inode:[eventfd]"
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
                if each.target != _EVENTFD:
                    continue
                facts = one.facts(each.fd)
                is_large = int(facts.get("eventfd-count", "0"), 16) > _MOST
                if is_large or facts.get("eventfd-semaphore") == "1":
                    yield one.holds(
                        "an eventfd that is a semaphore, or that is nearly full"
                    )


class Timers(Kind):
    """Timers (timerfd) that have expired.

    CRIU would set them once more, or not at all.
    """

    def rewrite(self, back: Return) -> None:
        for entry in back.saved.entries.values():
            timer = entry.tfd
            # CRIU (4.2) saves how long a timer still has to run: 0 once it has expired.
            if not entry.HasField("tfd") or timer.vsec or timer.vnsec:
                continue
            if timer.ticks and (timer.isec or timer.insec):
                if not timer.settime_flags:
                    # It was not read since: set to 0 it would never tick again. One
                    # that was set to a given time expires at once, and ticks on.
                    timer.vsec, timer.vnsec = timer.isec, timer.insec
            else:
                # CRIU adds the present time to a given one: it would expire again.
                timer.settime_flags = 0
