"""Makes notices of audit lines: which, and in which words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jupyterhub_gpu_reclaim.common.models import SessionKey, Value
from jupyterhub_gpu_reclaim.common.reasons import CALLED_OFF, Reason
from jupyterhub_gpu_reclaim.controlplane.api.audit_text import sentence

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.journal.audit_log import NumberedLine


#: Every kind of notice, with the beginning of its subject.
SUBJECTS = {
    "warned": "About to be suspended",
    "suspended": "Suspended",
    "suspend-failed": "Could not be suspended",
    "resume-failed": "Could not be brought back",
    "ended": "Ended",
    "deletion-ahead": "Will be deleted",
}
_KINDS = {
    "warned": "warned",
    "released": "suspended",
    "capture_failed": "suspend-failed",
    "thawed": "suspend-failed",
    "restore_failed": "resume-failed",
    "lost": "resume-failed",
    "vanished": "ended",
    "deletion ahead": "deletion-ahead",
}
_ADVICE = {
    "warned": "Use it, or choose Keep on its page, and it goes on running. A suspended"
    " session is not lost: it comes back with everything in it.",
    "suspended": "Open it as ever, and it comes back with everything in it.",
    "suspend-failed": "Nothing is lost by that, and you need not do anything.",
    "resume-failed": "Its checkpoint is kept. Try again, or choose to start afresh.",
    "ended": "Start it again. What was not saved in files is gone.",
    "deletion-ahead": "If you still need it, bring it back before.",
}
#: Reasons that are no failure: a cancelled suspend, a user who came back, or one who
#: shut the server down.
_NO_FAILURES = CALLED_OFF | {Reason.WENT_ON.value, Reason.SESSION_ENDED.value}


class Notice(Value, frozen=True, kw_only=True):
    """A notice as a receiver gets it. ``id`` is the same if it is sent again."""

    id: int
    kind: str
    at: float  #: seconds since the epoch
    session: SessionKey
    sentence: str
    advice: str
    code: str = ""  #: code of the reason, where there is one
    link: str = ""

    @property
    def subject(self) -> str:
        """The subject, in one line."""
        server = f" {self.session.server}" if self.session.server else ""
        return f"{SUBJECTS[self.kind]}: your JupyterHub session{server}"


def notice_of(numbered: NumberedLine, link: str) -> Notice | None:
    """The notice for an audit line, if any.

    Args:
        numbered: the line.
        link: address of the page where people see their sessions; may be empty.
    """
    number, line = numbered
    kind = _KINDS.get(line.what)
    if kind is None or line.code in _NO_FAILURES:
        return None
    return Notice(
        id=number,
        kind=kind,
        at=line.at,
        session=line.key,
        sentence=sentence(line),
        advice=_ADVICE[kind],
        code=line.code,
        link=link,
    )


class NotSent(Exception):
    """A notice was not taken; the text is for the log and holds no secret.

    Args:
        why: what happened.
        retryable: whether another try may help.
    """

    def __init__(self, why: str, *, retryable: bool) -> None:
        super().__init__(why)
        self.retryable = retryable


class Channel(Protocol):
    """A channel. A notice may come twice, with the same id, after a crash."""

    name: str

    async def send(self, notice: Notice) -> None:
        """Send a notice; ``NotSent`` if it was not taken. Limited in time."""

    def close(self) -> None:
        """Close open connections."""
