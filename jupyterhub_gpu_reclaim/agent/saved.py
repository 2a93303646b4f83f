"""Names inside a checkpoint, and findings turned into errors.

Shared by ``capture``, ``restore``, ``release`` and ``node``. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.errors import ReclaimError
    from jupyterhub_gpu_reclaim.models import Finding

#: The login of the session: ``models.Identity``.
IDENTITY = "identity.json"
#: What it needs of the place where it comes back: ``world.World``.
WORLD = "world.json"
#: CRIU's image files stand below this.
IMAGES = "criu/"
FILES_IMAGE = IMAGES + "files.img"
#: Archives of private file systems, numbered as in ``World.archives``.
ARCHIVE = "archive/{number}.tar"


def refuse_fatal(found: Iterable[Finding], kind: type[ReclaimError]) -> None:
    """Raise the first finding that is fatal.

    Raises:
        ReclaimError: of that kind, with the finding's reason and sentence.
    """
    fatal = [finding for finding in found if finding.fatal]
    if not fatal:
        return
    first = fatal[0]
    error = kind(Reason.of(first.code), retryable=first.retryable)
    error.message = first.message
    error.args = (first.message,)
    error.detail = "; ".join(finding.message for finding in fatal[1:])
    raise error
