"""Downloads: one checkpoint as a file that only its reader's passphrase opens.

The bytes come from an agent and go to the reader one piece at a time, so that a slow
reader slows the agent down and fills no memory here. Everything that can be refused is
refused before the first byte. If something fails later, the connection is cut: the
answer's length, which is sent first, tells the reader that the file is not whole.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from tornado.iostream import StreamClosedError

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import operation
from jupyterhub_gpu_reclaim.service.api.streams import flushed

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.controlplane.checkpoints.exports import Export

_log = logging.getLogger(__name__)

#: Most characters of a passphrase.
LONGEST_PASSPHRASE = 1024


class ExportOrder(Value, frozen=True, kw_only=True):
    """The passphrase that opens the file."""

    #: at least 8 characters; whoever knows it can read the session's memory
    passphrase: Annotated[str, msgspec.Meta(max_length=LONGEST_PASSPHRASE)]


async def send_export(
    route: PersonRoute, key: SessionKey, checkpoint: str, passphrase: str
) -> None:
    """Answer with that checkpoint as a file.

    Raises:
        Forbidden: ``downloads_off``: the administrator does not want that.
        TooManyStreams: the caller has another download, or all together too many.
        ReclaimError: as of ``UserApi.export``.
    """
    context = route.context
    if not context.downloads:
        raise Forbidden(Reason.DOWNLOADS_OFF)
    with context.exports.opened(route.person.label):
        export = await context.control.users.export(
            key, checkpoint, passphrase, route.person.label
        )
        route.set_header("Content-Type", "application/octet-stream")
        route.set_header("Content-Length", str(export.length))
        route.set_header(
            "Content-Disposition", f'attachment; filename="{checkpoint}.grx"'
        )
        route.set_header("X-Accel-Buffering", "no")  # nginx would take in all of it
        try:
            whole = await _send_file(route, export, context.limits.stalled)
        except ReclaimError as error:
            _log.warning("%s: the download of %s ended: %s", key, checkpoint, error)
            with suppress(StreamClosedError, AttributeError):
                route.detach().close()
            return
        if whole:
            route.finish()


async def _send_file(route: PersonRoute, export: Export, limit: float) -> bool:
    """Send the export; False: its reader is gone, or takes nothing."""
    async with aclosing(export.pieces()) as pieces:
        async for piece in pieces:
            route.write(piece)
            if not await flushed(route, limit=limit):
                return False
    return True


class ExportSaved(PersonRoute):
    """A checkpoint of a session as a file."""

    path: ClassVar = "api/sessions/{user}/{server}/saved/{checkpoint}/export"

    @operation(
        "Download one checkpoint as a file that only the passphrase opens, and that"
        " `store import` reads; it holds the memory of the session's programs",
        body=ExportOrder,
        answer=msgspec.Raw,
        media="application/octet-stream",
        errors=(404, 409, 507),
    )
    async def post(self, user: str, server: str, checkpoint: str) -> None:
        """Send the file."""
        key, passphrase = self.key(user, server), self.body(ExportOrder).passphrase
        await send_export(self, key, checkpoint, passphrase)


ROUTES: tuple[type[Route], ...] = (ExportSaved,)
