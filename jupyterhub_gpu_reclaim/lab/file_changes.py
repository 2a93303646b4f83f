"""Tells when a file was last changed through the server.

A person may write a text or sort files in JupyterLab with no kernel and no terminal,
and their requests are lost among those that open pages send by themselves. The server
tells its extensions of each change; the time of the last one is added to its status.
Opening a file or a folder is not a change: pages do that by themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

#: Field of the server's status, once a file was changed.
FIELD: Final = "gpu_reclaim_file_changed"
_CHANGES: Final = frozenset({"copy", "create", "delete", "rename", "save"})


def install(server: Any, facts: dict[str, Any]) -> None:
    # A contents manager may have no events.
    schema = getattr(server.contents_manager, "event_schema_id", None)
    if schema is None:
        return

    async def changed(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        del logger, schema_id
        if data.get("action") in _CHANGES:
            facts[FIELD] = datetime.now(UTC).isoformat()

    server.event_logger.add_listener(schema_id=schema, listener=changed)
