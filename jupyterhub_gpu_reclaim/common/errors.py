"""The one error tree: every failure has a code, a sentence, and whether to retry.

ReclaimError
├── Refused          nothing was touched; the reason is in the code
├── RolledBack       something was begun and undone; the session runs as before
├── RestoreFailed    the checkpoint is kept; the user chooses what to do
├── StoreError       the store could not write, read or authenticate something
├── Unreachable      a part of ours did not answer; nothing is known
├── NotFound         no such session, checkpoint or operation
└── BadRequest       the caller's arguments are invalid
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.reasons import Reason


class ReclaimError(Exception):
    """Base of all: a reason code, a sentence for a person, a detail for the log.

    Args:
        reason: the stable code; carries the sentence's template.
        detail: for the log only.
        retryable: whether the same call may succeed later; None takes the
            reason's own default.
        **facts: values for the sentence's template.
    """

    #: HTTP status that our own APIs answer with (RFC 9110).
    status: ClassVar[int] = 500

    def __init__(
        self,
        reason: Reason,
        *,
        detail: str = "",
        retryable: bool | None = None,
        **facts: Any,
    ) -> None:
        self.reason = reason
        self.facts = facts
        #: for people: never an internal path, token or traceback
        self.message = reason.sentence(**facts)
        self.detail = detail
        self.retryable = reason.retryable if retryable is None else retryable
        super().__init__(self.message)

    def __str__(self) -> str:
        text = f"{self.reason.value}: {self.message}"
        return f"{text} [{self.detail}]" if self.detail else text


class Refused(ReclaimError):
    status = 409


class RolledBack(ReclaimError):
    status = 409


class RestoreFailed(ReclaimError):
    status = 409


class StoreError(ReclaimError):
    status = 507


class Unreachable(ReclaimError):
    status = 503


class NotFound(ReclaimError):
    status = 404


class BadRequest(ReclaimError):
    status = 400
