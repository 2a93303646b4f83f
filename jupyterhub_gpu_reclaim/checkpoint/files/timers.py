"""Keeps timers behind descriptors (timerfd_create(2)) that have expired as they were.

CRIU (4.2) saves how long a timer still has to run, which is 0 once it has expired, and
sets it to that again. One with an interval that nobody has read since would never tick
again. To one that was set to a given time the present time is added, so that it would
expire once more, although it has been read.
"""

from __future__ import annotations

from typing import Any

from jupyterhub_gpu_reclaim.checkpoint.criu import images


def keep(files_img: bytes) -> bytes:
    """The image with such timers as CRIU has to set them.

    Raises:
        RestoreFailed: it is no ``files.img`` (``checkpoint_damaged``).
    """
    return images.rewrite_files(files_img, _keep)


def _keep(entry: Any) -> bool:
    timer = entry.tfd
    if not entry.HasField("tfd") or timer.vsec or timer.vnsec:
        return False
    if timer.ticks and (timer.isec or timer.insec):
        if timer.settime_flags:
            return False  # expires at once, and ticks on
        timer.vsec, timer.vnsec = timer.isec, timer.insec
        return True
    if timer.settime_flags:
        timer.settime_flags = 0
        return True
    return False
