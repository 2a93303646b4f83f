"""Pages to look something up: the settings in force, and every message."""

from __future__ import annotations

import re
from typing import Any

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.web.manager import ManagerPage
from jupyterhub_gpu_reclaim.service.web.pages import THEME_COOKIE, THEMES, Page


class SettingsPage(ManagerPage):
    """The settings of the service."""

    async def get(self) -> None:
        """Show them."""
        self.page("settings.html", settings=self.context.settings())


class MessagesPage(Page):
    """Every message by its code, for whoever has met one."""

    async def get(self) -> None:
        """Show them."""
        self.page("messages.html", reasons=sorted(Reason, key=lambda one: one.value))


class Theme(Page):
    """Light, dark, or what the browser prefers; remembered in a cookie."""

    async def get(self, theme: str) -> None:
        """Remember it, and lead back to the first page."""
        context = self.context
        if theme == "auto":
            self.clear_cookie(THEME_COOKIE, path=context.prefix)
        else:
            self.set_cookie(
                THEME_COOKIE,
                theme,
                path=context.prefix,
                expires_days=365,
                httponly=True,
                samesite="Lax",
                secure=self.request.protocol == "https",
            )
        self.redirect(context.prefix)


def rules(prefix: str) -> list[tuple[Any, ...]]:
    """The tornado rules of these pages under a URL prefix."""
    base = re.escape(prefix)
    return [
        (rf"{base}settings", SettingsPage),
        (rf"{base}messages", MessagesPage),
        (rf"{base}theme/({'|'.join(THEMES)})", Theme),
    ]
