"""The GPU queue: its length for everyone, and the place of one's own sessions.

Of other people's sessions it only says since when they wait and for how many GPUs.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from jupyterhub_gpu_reclaim.common.models import Waiting
from jupyterhub_gpu_reclaim.service.api.base import PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import operation


class Queue(PersonRoute):
    """The queue for GPUs."""

    path: ClassVar = "api/queue"

    @operation(
        "Who waits for a GPU, in the order of the queue; `key` and `reason` only of"
        " sessions that you may see",
        answer=list[Waiting],
    )
    async def get(self) -> None:
        """List them."""
        self.answer([self._seen(one) for one in self.context.control.waiting()])

    def _seen(self, one: Waiting) -> Waiting:
        if one.key is not None and self.person.may_see(one.key):
            return one
        return msgspec.structs.replace(one, key=None, reason="")


ROUTES: tuple[type[Route], ...] = (Queue,)
