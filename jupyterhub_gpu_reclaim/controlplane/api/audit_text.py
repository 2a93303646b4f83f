"""Turns audit lines into sentences, for the history pages and for notices.

Pure. A line of an unknown kind is shown in the audit log's own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import SessionKey, Value
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import AuditLine
    from jupyterhub_gpu_reclaim.controlplane.journal.audit_log import NumberedLine
    from jupyterhub_gpu_reclaim.controlplane.model.rows import AuditRow


class AuditSentence(Value, frozen=True, kw_only=True):
    id: int
    at: float
    key: SessionKey
    who: str
    what: str  #: stable word of the audit for what happened
    code: str = ""  #: of the reason, where there is one
    sentence: str


class AuditPage(Value, frozen=True, kw_only=True):
    lines: list[AuditSentence]
    next: int | None = None  #: ``before`` of the page with older ones, if there are any


#: Sentences for the words of the audit; ``{who}`` begins a sentence.
_SENTENCES = {
    "ask to suspend": "{who} asked to suspend it.",
    "ask to resume": "{who} asked to resume it.",
    "ask to save": "{who} asked for a save point.",
    "save point": "It was saved while it ran:",
    "save point failed": "It could not be saved while it ran.",
    "ask to nap": "{who} asked it to nap.",
    "ask to wake": "{who} asked to wake it.",
    "call off": "What was asked could not be begun, and was called off.",
    "waits for a GPU": "It waits for a GPU.",
    "naps": "It began to nap: its GPU memory was moved to the machine's memory.",
    "wakes": "It woke up and got its GPU memory back.",
    "makes room": "It was made to nap so that another session could wake.",
    "nap failed": "It could not nap.",
    "warned": "Its users were warned.",
    "stays": "The warning was withdrawn.",
    "suspend": "Suspending started.",
    "committed": "Its checkpoint is complete.",
    "released": "It was suspended, and its GPU and memory are free.",
    "capture_failed": "It could not be suspended.",
    "thawed": "The suspend was undone, and it kept running.",
    "restore": "Resuming started.",
    "restored": "It was resumed.",
    "restore_failed": "It could not be resumed; its checkpoint was kept.",
    "started": "It was started.",
    "stopped": "It was stopped.",
    "vanished": "Its programs ended by themselves.",
    "report": "Programs of it run that the Hub does not know of.",
    "end second tree": "{who} ended programs of it that the Hub did not know of:",
    "lost": "Its programs ended; the checkpoint that it goes back to was kept.",
    "discarded": "Its checkpoint was deleted.",
    "put_aside": "{who} started fresh; its checkpoint was put aside.",
    "start fresh": "{who} started fresh; the session under the former name is kept.",
    "found_running": "It was found running.",
    "found_saved": "It was found suspended.",
    "brought_back": "Another checkpoint of it was chosen.",
    "put files back": "{who} chose to put its files back as they were saved.",
    "went back": "It went back to a save point.",
    "ask to bring back": "{who} asked for another checkpoint of it.",
    "rename": "{who} renamed a save point of it.",
    "journal rebuilt": "{who} chose to resume its newest checkpoint.",
    "renew login": "{who} let its next start make its old login valid again.",
    "revoke tabs": "{who} revoked the key of its open tabs.",
    "opt out": "{who} set it never to be suspended when idle.",
    "opt in": "{who} set it to be suspended when idle again.",
    "discard": "{who} deleted a checkpoint of it.",
    "retention": "A checkpoint that had been put aside was deleted.",
    "deletion ahead": "A checkpoint of it will be deleted.",
    "new account": "The former account's session was put aside.",
    "user deleted": "{who} deleted its user; what is suspended is kept for a while.",
    "forget": "Its server was deleted, and all its checkpoints.",
    "forgotten": "Its deletion is complete.",
}


def line_of(numbered: NumberedLine) -> AuditSentence:
    number, line = numbered
    return AuditSentence(
        id=number,
        at=line.at,
        key=line.key,
        who=line.who,
        what=line.what,
        code=line.code,
        sentence=sentence(line),
    )


def sentence(line: AuditRow | AuditLine) -> str:
    """Say what happened and why, with the numbers."""
    who = "The service" if line.who == SERVICE else line.who
    if line.what == "keep":
        return _kept(who, line.message)
    beginning = _SENTENCES.get(line.what, f"{who}: {line.what}.").replace("{who}", who)
    if line.what in {"discard", "ask to bring back"}:
        return beginning  # the message is an id
    if line.what in {"vanished", "report"} and line.message:
        return line.message  # the whole of it; "vanished" need not be by themselves
    return f"{beginning} {line.message}".strip()


def _kept(who: str, message: str) -> str:
    """Put how long a session is kept into words; the audit has ``"3600 s"``."""
    digits = message.removesuffix(" s")
    seconds = float(digits) if digits.isdigit() else 0.0
    if not seconds:
        return f"{who} cancelled Keep."
    return f"{who} asked to keep it for {duration(seconds)}."
