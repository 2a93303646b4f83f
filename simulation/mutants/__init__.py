"""Defects that were mended once, put back in memory: the simulator must find each.

A mutant is a table of names and what stands for them while a run lasts, like the
doubles' own. It restores the behaviour of the defect in today's code, not its text.
What each did, and who found it, is told in ``docs/explanation/track-record.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from simulation.mutants import hub, node, service
from simulation.plan import draw

if TYPE_CHECKING:
    from simulation.mutants.patch import Patch
    from simulation.plan import Event, Plan


class Mutant(NamedTuple):
    patches: tuple[Patch, ...]
    seed: int  #: one that finds it
    events: tuple[Event, ...] = ()  #: by its plan with these, where it is too rare

    def plan(self) -> Plan:
        plan = draw(self.seed)
        return replace(plan, events=self.events) if self.events else plan


MUTANTS: dict[str, Mutant] = {
    "a-failed-thaw-deletes-the-checkpoint-later": Mutant(
        node.FAILED_THAW, 5012244, node.WOKEN_BEFORE_ITS_END
    ),
    "an-older-journal-starts-cold": Mutant(service.OLDER_JOURNAL, 42),
    "an-older-journal-lets-checkpoints-expire": Mutant(service.EXPIRES, 398),
    "a-lost-journal-counts-generations-anew": Mutant(service.GENERATIONS, 29200000036),
    "two-services-on-one-journal": Mutant(service.NO_LOCK, 299),
    "an-order-outlives-its-session": Mutant(service.LASTING_ORDERS, 1),
    "a-lost-journal-forgets-a-captured-tree-that-died": Mutant(
        service.LOST_END, 8040324
    ),
    "a-deleted-session-comes-back": Mutant(service.FORGOTTEN_DELETIONS, 29400002602),
    "an-order-to-delete-hits-the-next-account": Mutant(service.LATE_DELETIONS, 1101154),
    "a-full-state-folder-keeps-a-tree-frozen": Mutant(node.FULL_FOLDER, 3000272),
    "what-cannot-be-written-is-forgotten": Mutant(node.UNWRITTEN, 3005249),
    "an-end-after-the-return-is-a-stop": Mutant(service.SILENT_LOSS, 132),
    "an-end-before-the-return-was-noted-is-a-stop": Mutant(service.UNNOTED_RETURN, 889),
    "an-ended-session-loses-its-parent": Mutant(service.LAST_PARENT, 1160),
    "a-woken-tree-is-ended": Mutant(node.WOKEN, 1534),
    "a-half-restored-tree-goes-on": Mutant(node.HALF_RESTORED, 117),
    "a-thaw-forgets-the-gpu": Mutant(node.EMPTY_GPU, 7),
    "gpu-room-is-given-twice": Mutant(node.ROOM_TWICE, 3000945),
    "no-answer-means-nothing-there": Mutant(service.SILENCE, 2981000004),
    "a-late-order-hits-who-is-at-work": Mutant(node.LATE_ORDERS, 1004011693),
    "an-agent-obeys-a-former-service": Mutant(node.ANY_SERVICE, 3000000274),
    "the-spawner-starts-cold-without-an-answer": Mutant(
        hub.COLD_WITHOUT_ANSWER, 20300000001
    ),
    "a-refused-start-ends-what-runs": Mutant(hub.REFUSED_START_ENDS, 200079),
    "an-older-database-is-all-that-the-hub-knows": Mutant(
        hub.OLDER_DATABASE, 8204000753
    ),
    "a-stop-of-ours-ends-what-runs": Mutant(hub.ANYBODYS_STOP, 931000956),
    "a-hub-killed-in-a-start-forgets-it": Mutant(hub.OUT_OF_SIGHT, 450964),
    "a-cancelled-restore-is-left": Mutant(service.LEFT_RESTORE, 2912000083),
    # Those of naps never happened: they show that the checkers of naps can fail.
    "a-nap-is-missed": Mutant(service.MISSED_NAPS, 510000000),
    "an-order-to-wake-is-lost": Mutant(service.ORDERS_TO_NAP, 510000000),
    "what-naps-is-not-watched": Mutant(node.UNWATCHED, 510000000),
    "a-failed-nap-leaves-it-stopped": Mutant(node.FAILED_NAP, 510000119),
    "nobody-makes-room": Mutant(service.NO_ROOM_MADE, 900000039),
    "one-naps-for-others-again-and-again": Mutant(service.ASKED_AGAIN, 900000161),
    "who-works-naps-for-others": Mutant(service.ASKED_AT_WORK, 29200000057),
    "a-renamed-user-starts-cold": Mutant(service.RENAMED, 1371000004),
    "what-cannot-come-back-is-ended": Mutant(node.UNREHEARSED, 1400000000),
    "an-unmounted-store-is-an-empty-one": Mutant(node.UNMOUNTED, 1420000023),
    "a-rescue-keeps-the-agent-out": Mutant(node.LOCKED_OUT, 940000031),
}
