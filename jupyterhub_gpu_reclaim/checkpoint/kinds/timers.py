"""Timers behind descriptors (timerfd_create(2))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Return


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
