"""A finding, or the error for a file, made of a reason. It judges nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.models import Finding
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable


def finding(reason: Reason, *, fatal: bool = True, **facts: Any) -> Finding:
    return Finding(
        code=reason.value,
        message=reason.sentence(**facts),
        hint=reason.hint,
        fatal=fatal,
        retryable=reason.retryable,
    )


def refused(
    reason: Reason, path: bytes, why: str = "", what: str = "file"
) -> RestoreFailed:
    return RestoreFailed(reason, path=os.fsdecode(path), why=why, what=what)


def of_kind(
    error: OSError | ReclaimError, kind: type[ReclaimError], reason: Reason
) -> ReclaimError:
    """An error of a step as one of that kind; one that has a kind already stays."""
    if isinstance(error, OSError):
        why = error.strerror or "a system call failed"
        return kind(reason, why=why, detail=str(error))
    if type(error) is not ReclaimError:
        return error
    return kind(
        error.reason, detail=error.detail, retryable=error.retryable, **error.facts
    )


def refuse_fatal(found: Iterable[Finding], kind: type[ReclaimError]) -> None:
    """Raise the first fatal finding as an error of that kind."""
    fatal = [finding for finding in found if finding.fatal]
    if not fatal:
        return
    first = fatal[0]
    error = kind(Reason.of(first.code), retryable=first.retryable)
    error.message = first.message
    error.args = (first.message,)
    error.detail = "; ".join(finding.message for finding in fatal[1:])
    raise error
