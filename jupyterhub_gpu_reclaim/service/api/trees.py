"""Trees of a session out of its user's reach; for managers.

They are left alone until a person ends them by name: they have no checkpoint.
"""

from __future__ import annotations

from typing import ClassVar

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden, PersonRoute, Route
from jupyterhub_gpu_reclaim.service.api.openapi import operation


class SecondTree(PersonRoute):
    """One incarnation other than the session itself."""

    path: ClassVar = "api/sessions/{user}/{server}/trees/{incarnation}"

    @operation(
        "End programs of the session that the Hub does not know of; for administrators",
        status=204,
        errors=(404, 409),
    )
    async def delete(self, user: str, server: str, incarnation: str) -> None:
        """End it; what it holds in memory is lost."""
        key = self.key(user, server)
        if not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)
        await self.context.control.end_second(key, incarnation, self.person.label)
        self.no_content()


ROUTES: tuple[type[Route], ...] = (SecondTree,)
