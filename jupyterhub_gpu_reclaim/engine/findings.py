"""Make a finding out of a reason.

Called by every check of the engine. It judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.models import Finding

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.reasons import Reason


def finding(reason: Reason, *, fatal: bool = True, **facts: Any) -> Finding:
    """That reason with its sentence filled in."""
    return Finding(
        code=reason.value,
        message=reason.sentence(**facts),
        hint=reason.hint,
        fatal=fatal,
        retryable=reason.retryable,
    )
