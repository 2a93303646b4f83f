"""Adds facts of ours to the server's status (``GET api/status``), for samples."""

from __future__ import annotations

import json
from typing import Any, Final

from jupyter_server.services.api.handlers import APIStatusHandler
from jupyter_server.utils import url_path_join

#: Key of the facts in the server's settings.
_SETTING: Final = "gpu_reclaim_status"


class StatusHandler(APIStatusHandler):  # type: ignore[misc,unused-ignore]
    """``GET api/status``, with our facts."""

    def finish(self, chunk: Any = None) -> Any:
        facts = self.settings[_SETTING]
        if facts and self.get_status() == 200 and isinstance(chunk, str):
            chunk = json.dumps({**json.loads(chunk), **facts}, sort_keys=True)
        return super().finish(chunk)


def install(server: Any) -> dict[str, Any]:
    """Let a ``ServerApp`` tell facts of ours: those put into the returned mapping."""
    facts: dict[str, Any] = {}
    settings = server.web_app.settings
    settings[_SETTING] = facts
    path = url_path_join(settings["base_url"], "api/status")
    server.web_app.add_handlers(".*$", [(path, StatusHandler)])
    return facts
