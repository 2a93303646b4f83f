"""Adds facts of ours to the server's status (``GET api/status``), for samples.

One is known at once: after how long the server ends idle kernels, or itself. Its own
configuration decides that, from the image, a volume or its user's files, which nothing
else reads. Administrators are warned if that comes before a suspend.
"""

from __future__ import annotations

import json
from typing import Any, Final

from jupyter_server.services.api.handlers import APIStatusHandler
from jupyter_server.utils import url_path_join

#: Field of the status, in seconds, if there is such a culler.
CULLS_AFTER: Final = "gpu_reclaim_culls_after"
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
    kernels = getattr(server.kernel_manager, "cull_idle_timeout", 0)
    itself = getattr(server, "shutdown_no_activity_timeout", 0)
    if times := [seconds for seconds in (kernels, itself) if seconds > 0]:
        facts[CULLS_AFTER] = min(times)
    settings = server.web_app.settings
    settings[_SETTING] = facts
    path = url_path_join(settings["base_url"], "api/status")
    server.web_app.add_handlers(".*$", [(path, StatusHandler)])
    return facts
