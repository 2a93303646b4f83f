"""Defects that were mended once, put back in memory: the simulator must find each.

A mutant is a table of names and what stands for them while a run lasts, like the
doubles' own. It restores the behaviour of the defect in today's code, not its text.
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
    """One defect."""

    story: str  #: what it did
    found_by: str  #: who or what found it first
    patches: tuple[Patch, ...]
    seed: int  #: one that finds it
    events: tuple[Event, ...] = ()  #: by its plan with these, where it is too rare

    def plan(self) -> Plan:
        plan = draw(self.seed)
        return replace(plan, events=self.events) if self.events else plan


#: Never happened: shows that the checkers of naps can fail.
_NAPS = "nobody; made for the checkers (issue 14)"
_READING = "a reading against it (issue 11, {})"

MUTANTS: dict[str, Mutant] = {
    "a-failed-thaw-deletes-the-checkpoint-later": Mutant(
        "A thaw that failed left a record from which the agent's next start deleted"
        " the only checkpoint of a tree that had ended meanwhile.",
        _READING.format("B6"),
        node.FAILED_THAW,
        seed=5012244,
        events=node.WOKEN_BEFORE_ITS_END,
    ),
    "an-older-journal-starts-cold": Mutant(
        "A journal from a backup did not know of a newer checkpoint: cold start.",
        _READING.format("B7"),
        service.OLDER_JOURNAL,
        seed=42,
    ),
    "an-older-journal-lets-checkpoints-expire": Mutant(
        "A journal from a backup took the checkpoint that a session is suspended in"
        " for a superseded one, and deleted it.",
        _READING.format("B7"),
        service.EXPIRES,
        seed=398,
    ),
    "a-lost-journal-counts-generations-anew": Mutant(
        "After the journal was lost, a number was used twice, and no term told whose it"
        " was, so that an older state could pass for the newest.",
        _READING.format("B7"),
        service.GENERATIONS,
        seed=29200000036,
    ),
    "two-services-on-one-journal": Mutant(
        "Two services worked on one journal, and each undid what the other had done.",
        _READING.format("B9"),
        service.NO_LOCK,
        seed=299,
    ),
    "an-order-outlives-its-session": Mutant(
        "An order to suspend hit the next session of that name at once.",
        _READING.format("B10"),
        service.LASTING_ORDERS,
        seed=1,
    ),
    "a-lost-journal-forgets-a-captured-tree-that-died": Mutant(
        "The journal was lost, and a captured tree died before its release. The Hub was"
        " told that the session was over, and its next start was cold.",
        "this simulator (seed 7002885)",
        service.LOST_END,
        seed=8040324,
    ),
    "a-deleted-session-comes-back": Mutant(
        "An order to delete was not repeated, and what was left came back.",
        _READING.format("B11"),
        service.FORGOTTEN_DELETIONS,
        seed=29400002602,
    ),
    "an-order-to-delete-hits-the-next-account": Mutant(
        "A new account's session was found before the order to delete the former one"
        " was taken up, which then named the new one's incarnation, and ended it.",
        "this simulator (seed 1101154)",
        service.LATE_DELETIONS,
        seed=1101154,
    ),
    "a-full-state-folder-keeps-a-tree-frozen": Mutant(
        "A record that could not be written ended the roll-back in its middle.",
        _READING.format("B14"),
        node.FULL_FOLDER,
        seed=3000272,
    ),
    "what-cannot-be-written-is-forgotten": Mutant(
        "The state folder was full, and so the agent did not know any more that it had"
        " a tree to thaw: that stayed frozen, and passed for one that runs.",
        "this simulator (seed 3005249)",
        node.UNWRITTEN,
        seed=3005249,
    ),
    "an-end-after-the-return-is-a-stop": Mutant(
        "A session that ended right after its return, while the agent did not answer,"
        " counted as stopped by its user: cold start.",
        "this simulator (seed 181 of its first day)",
        service.SILENT_LOSS,
        seed=132,
    ),
    "an-end-before-the-return-was-noted-is-a-stop": Mutant(
        "Likewise where the service had not yet noted the return.",
        "this simulator (seed 574 of its first day)",
        service.UNNOTED_RETURN,
        seed=3,
    ),
    "an-ended-session-loses-its-parent": Mutant(
        "The checkpoint that a session came from expired after the session had ended"
        " and before the Hub had seen that: nothing was left.",
        "this simulator (seed 1130 of its first day)",
        service.LAST_PARENT,
        seed=1160,
    ),
    "a-woken-tree-is-ended": Mutant(
        "A captured tree that its user had woken was ended with what it did since.",
        "a test with a real session (issue 11)",
        node.WOKEN,
        seed=907,
    ),
    "a-half-restored-tree-goes-on": Mutant(
        "The agent's start let a tree go on whose restore was cut off in its middle.",
        "a test that kills the agent",
        node.HALF_RESTORED,
        seed=117,
    ),
    "a-thaw-forgets-the-gpu": Mutant(
        "A thaw let processes go on before their GPU memory was back.",
        "a card (issue 11, C)",
        node.EMPTY_GPU,
        seed=7,
    ),
    "gpu-room-is-given-twice": Mutant(
        "Two fills counted on the same free GPU memory.",
        "a card (issue 11, C20)",
        node.ROOM_TWICE,
        seed=3000945,
    ),
    "no-answer-means-nothing-there": Mutant(
        "An agent that did not answer counted as one with nothing to tell: a second"
        " tree beside the first one.",
        "a test with a network that is cut",
        service.SILENCE,
        seed=2981000004,
    ),
    "a-late-order-hits-who-is-at-work": Mutant(
        "An order to suspend an idle session was seconds late, and its user had come"
        " back meanwhile.",
        "this simulator (seed 1004026202)",
        node.LATE_ORDERS,
        seed=1004011693,
    ),
    "an-agent-obeys-a-former-service": Mutant(
        "An order to end a session was under way when another service took over and"
        " found that it runs: it was ended under its user's hands.",
        "a test with the call held up (issue 30)",
        node.ANY_SERVICE,
        seed=3000000263,
    ),
    "the-spawner-starts-cold-without-an-answer": Mutant(
        "The service was away, and the spawner started cold.",
        "a reading of trap T6",
        hub.COLD_WITHOUT_ANSWER,
        seed=20300000001,
    ),
    "a-refused-start-ends-what-runs": Mutant(
        "A start was refused while the session ran, since a restored database did not"
        " know its login. The Hub stopped what it could not start.",
        "this simulator (seed 200079)",
        hub.REFUSED_START_ENDS,
        seed=200079,
    ),
    "an-older-database-is-all-that-the-hub-knows": Mutant(
        "A Hub whose database was put back started a session cold beside what ran, as"
        " the service was killed while it answered, or no agent could be asked.",
        "this simulator (seeds 1118000032 and 1160000903)",
        hub.OLDER_DATABASE,
        seed=8204000753,
    ),
    "a-stop-of-ours-ends-what-runs": Mutant(
        "The stop that releases what is saved ended what its user had let go on by"
        " hand, as the service was away by then.",
        "this simulator (seed 931000956)",
        hub.ANYBODYS_STOP,
        seed=931000956,
    ),
    "a-hub-killed-in-a-start-forgets-it": Mutant(
        "A Hub that was killed as a start ended did not know where that session ran,"
        " took it for ended, and started a second one beside it.",
        "this simulator (seeds 1202467 and 450964)",
        hub.OUT_OF_SIGHT,
        seed=450964,
    ),
    "a-cancelled-restore-is-left": Mutant(
        "What a cancelled return had placed was not ended, and the next return placed"
        " a second one from the same checkpoint.",
        "a trial of trap T9",
        service.LEFT_RESTORE,
        seed=2912000083,
    ),
    "a-nap-is-missed": Mutant(
        "The journal's word for whether a session naps counted, not its agent's.",
        _NAPS,
        service.MISSED_NAPS,
        seed=510000000,
    ),
    "an-order-to-wake-is-lost": Mutant(
        "Orders to nap and to wake were journalled, and nothing came of them.",
        _NAPS,
        service.ORDERS_TO_NAP,
        seed=510000000,
    ),
    "what-naps-is-not-watched": Mutant(
        "Nothing that a person sent woke a session.",
        _NAPS,
        node.UNWATCHED,
        seed=510000000,
    ),
    "a-failed-nap-leaves-it-stopped": Mutant(
        "What a failed nap had stopped stayed so, and nobody knew.",
        _NAPS,
        node.FAILED_NAP,
        seed=510000119,
    ),
    "nobody-makes-room": Mutant(
        "Whoever woke and found the card full waited until others fell asleep.",
        _NAPS,
        service.NO_ROOM_MADE,
        seed=900000039,
    ),
    "one-naps-for-others-again-and-again": Mutant(
        "A session that had napped for another one was asked again at once.",
        _NAPS,
        service.ASKED_AGAIN,
        seed=900000161,
    ),
    "who-works-naps-for-others": Mutant(
        "A session that was at work was put to nap for another one.",
        _NAPS,
        service.ASKED_AT_WORK,
        seed=29200000057,
    ),
    "a-renamed-user-starts-cold": Mutant(
        "A user was renamed while their session ran. It was suspended under the former"
        " name; the Hub was told that it is over, and started a second one, cold.",
        "this simulator, as it learnt to rename (13 of 110 seeds with a renaming)",
        service.RENAMED,
        seed=1371000004,
    ),
    "what-cannot-come-back-is-ended": Mutant(
        "Whether a session would come back was found out when its user came back: its"
        " programs had been ended long before.",
        "somebody who had not written this (issue 28, A)",
        node.UNREHEARSED,
        seed=1400000000,
    ),
    "an-unmounted-store-is-an-empty-one": Mutant(
        "The store's volume was not mounted: sessions were suspended into the empty"
        " folder below, and ended; those in the store had no checkpoint.",
        "a walk through an ordinary machine (issue 29, B1)",
        node.UNMOUNTED,
        seed=1420000023,
    ),
    "a-rescue-keeps-the-agent-out": Mutant(
        "What lets sessions go on without an agent waited a minute for each nap that"
        " found no room, and no agent could start meanwhile.",
        "seed 923000442, and a reading of what it showed",
        node.LOCKED_OUT,
        seed=940000031,
    ),
}
