"""The base of the managers' pages: it lets nobody else open them."""

from __future__ import annotations

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.base import Forbidden
from jupyterhub_gpu_reclaim.service.web.pages import Page


class ManagerPage(Page):
    """A page about all users' sessions."""

    async def prepare(self) -> None:
        """Let managers in."""
        await super().prepare()
        if not self._finished:  # it is, where it leads to the login
            self.check_manages()

    def check_manages(self) -> None:
        """Reject other people.

        Raises:
            Forbidden: it is for managers.
        """
        if not self.person.manages:
            raise Forbidden(Reason.FORBIDDEN)
