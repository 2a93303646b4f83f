"""The event log: each line of the journal's audit as a line of JSON, for machines.

No session waits for it: what cannot be written is tried again later, in order.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import audit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.models import AuditLine
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

#: The setting's value for the standard output, which goes to the Hub's log.
STANDARD_OUTPUT = "-"


@contextlib.asynccontextmanager
async def keeping(journal: Journal, place: str) -> AsyncIterator[None]:
    """Keep an event log while the block lasts, if a place is named.

    Raises:
        Refused: the place cannot be written.
    """
    if not place:
        yield
        return
    try:
        append(place)
    except OSError as error:
        what = f"The event log {place} cannot be written: {error.strerror}."
        raise Refused(Reason.SETTING_INVALID, what=what) from error

    def tell(line: AuditLine) -> None:
        append(place, codec.encode(audit.told(line)) + b"\n")

    async with audit.following(journal, tell):
        yield


def append(place: str, text: bytes = b"") -> None:
    """Append to a file that only its owner can read, which may have been rotated.

    Raises:
        OSError: it cannot be written.
    """
    if place == STANDARD_OUTPUT:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    with os.fdopen(os.open(place, flags, 0o600), "ab") as file:
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            text = b"\n" + text  # a crash, or a full disk, has cut the last line
        file.write(text)
