"""Tells when somebody last changed a file through the server.

Whoever writes a text or sorts files in JupyterLab may use no kernel and no terminal,
and their requests are lost among those that open pages send by themselves. The server
tells its extensions of each change; this adds the time of the last one to its status
(``GET api/status``). Opening a file or a folder is no change: pages do that by
themselves.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from jupyter_server.services.api.handlers import APIStatusHandler
from jupyter_server.utils import url_path_join

#: The server's status has it once a file was changed.
FIELD: Final = "gpu_reclaim_file_changed"
#: Where the time stands among the server's settings.
_SETTING: Final = "gpu_reclaim_file_changed"
_CHANGES: Final = frozenset({"copy", "create", "delete", "rename", "save"})


class StatusHandler(APIStatusHandler):  # type: ignore[misc,unused-ignore]
    """``GET api/status``, with the time of the last change."""

    def finish(self, chunk: Any = None) -> Any:
        """Add it to an answer that is a status."""
        changed = self.settings.get(_SETTING)
        if changed is not None and self.get_status() == 200 and isinstance(chunk, str):
            told = {**json.loads(chunk), FIELD: changed.isoformat()}
            chunk = json.dumps(told, sort_keys=True)
        return super().finish(chunk)


def install(server: Any) -> None:
    """Note a server's changes of files, and tell of them.

    Args:
        server: a ``jupyter_server.serverapp.ServerApp``; one whose contents manager
            tells of no events is left alone.
    """
    schema = getattr(server.contents_manager, "event_schema_id", None)
    if schema is None:
        return
    settings = server.web_app.settings

    async def changed(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        del logger, schema_id
        if data.get("action") in _CHANGES:
            settings[_SETTING] = datetime.now(UTC)

    server.event_logger.add_listener(schema_id=schema, listener=changed)
    path = url_path_join(settings["base_url"], "api/status")
    server.web_app.add_handlers(".*$", [(path, StatusHandler)])
