"""The base of the managers' pages: it lets nobody else open them."""

from __future__ import annotations

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden
from jupyterhub_gpu_reclaim.service.web.pages import Page


class ManagerPage(Page):
    """A page about all users' sessions."""

    async def prepare(self) -> None:
        """Let managers in.

        Raises:
            Forbidden: it is for managers.
        """
        await super().prepare()
        # It has ended where it leads to the login.
        if not self._finished and not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)
