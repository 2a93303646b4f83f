"""The phases of a session and their steps, as they were meant.

The code's table (``controlplane/model/phases.py``) must be this one: a test compares
them. It is written a second time so that nobody changes a phase in passing.
"""

from __future__ import annotations

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane.model.phases import SessionEvent

#: Phase, what happens, phase.
_WRITTEN = """
running     warned          warned
napping     warned          warned
warned      stays           running
running     naps            napping
napping     wakes           running
warned      naps            warned
warned      wakes           warned
running     suspend         suspending
napping     suspend         suspending
warned      suspend         suspending
suspending  capture_failed  running
suspending  committed       releasing
releasing   thawed          running
suspended   thawed          running
releasing   released        suspended
suspended   restore         resuming
resuming    restore         resuming
resuming    restored        running
resuming    restore_failed  suspended
stopped     started         running
running     started         running
napping     started         running
warned      started         running
running     stopped         stopped
napping     stopped         stopped
warned      stopped         stopped
suspending  stopped         stopped
running     vanished        stopped
napping     vanished        stopped
warned      vanished        stopped
suspending  vanished        stopped
running     lost            suspended
napping     lost            suspended
warned      lost            suspended
suspending  lost            suspended
resuming    stopped         suspended
suspended   stopped         suspended
suspended   discarded       stopped
suspended   put_aside       stopped
suspended   brought_back    suspended
stopped     brought_back    suspended
running     found_running   running
napping     found_running   running
warned      found_running   running
stopped     found_running   running
suspended   found_running   running
resuming    found_running   running
running     found_captured  releasing
napping     found_captured  releasing
warned      found_captured  releasing
stopped     found_captured  releasing
suspended   found_captured  releasing
releasing   found_captured  releasing
resuming    found_captured  releasing
running     found_saved     suspended
napping     found_saved     suspended
warned      found_saved     suspended
suspending  found_saved     suspended
stopped     found_saved     suspended
suspended   found_saved     suspended
"""


def _read(line: str) -> tuple[tuple[Phase, SessionEvent], Phase]:
    before, event, after = line.split()
    return (Phase(before), SessionEvent[event.upper()]), Phase(after)


PAPER = dict(_read(line) for line in _WRITTEN.strip().splitlines())


def is_step(before: Phase, after: Phase, event: SessionEvent | None = None) -> bool:
    """Whether a session may go from one phase to the other in one step of the model.

    A session that stays in its phase has made no step, or one that leads back to it.

    Args:
        before: its phase.
        after: its phase then.
        event: what happened, where that is known.
    """
    if event is not None:
        return PAPER.get((before, event)) is after
    if before is after:
        return True
    return any(was is before and PAPER[was, how] is after for was, how in PAPER)
