"""Compares the journal with store and Hub, and corrects it; for managers.

For use after a restore from a backup or a loss.
"""

from __future__ import annotations

from typing import ClassVar

from jupyterhub_gpu_reclaim.common.models import Compared
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import operation


class Journal(PersonRoute):
    """Journal, store and Hub compared."""

    path: ClassVar = "api/journal"

    async def prepare(self) -> None:
        """Let managers in.

        Raises:
            Forbidden: for other callers.
        """
        await super().prepare()
        if not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)

    @operation(
        "Compare the journal with the store and the Hub; for administrators",
        answer=list[Compared],
    )
    async def get(self) -> None:
        """Compare; nothing is changed."""
        self.answer(await self.context.control.compare())

    @operation(
        "Let the journal follow the store: the newest checkpoint of each session comes"
        " back at its next visit; for administrators",
        answer=list[Compared],
    )
    async def post(self) -> None:
        """Bring the journal in line with the store."""
        self.answer(await self.context.control.rebuild(self.person.label))


ROUTES: tuple[type[Route], ...] = (Journal,)
