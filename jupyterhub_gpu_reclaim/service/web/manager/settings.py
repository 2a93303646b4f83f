"""The page of the service's settings in force."""

from __future__ import annotations

from jupyterhub_gpu_reclaim.service.web.manager.page import ManagerPage


class SettingsPage(ManagerPage):
    """The page."""

    async def get(self) -> None:
        """Show the page."""
        self.page(
            "settings.html",
            settings=self.context.settings(),
            warnings=self.context.warnings(),
        )


ROUTES = (("settings", SettingsPage),)
