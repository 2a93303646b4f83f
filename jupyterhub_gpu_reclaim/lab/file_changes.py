"""Tells when somebody last changed a file through the server.

A person may write a text or sort files in JupyterLab with no kernel and no terminal,
and their requests are lost among those that open pages send by themselves. The server
tells its extensions of each change; this adds the time of the last one to its status
(``status.py``). Opening a file or a folder is no change: pages do that by themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

#: Field of the server's status, once a file was changed.
FIELD: Final = "gpu_reclaim_file_changed"
_CHANGES: Final = frozenset({"copy", "create", "delete", "rename", "save"})


def install(server: Any, facts: dict[str, Any]) -> None:
    """Note a server's changes of files.

    Args:
        server: a ``jupyter_server.serverapp.ServerApp``; one whose contents manager
            tells of no events is left alone.
        facts: fields of its status.
    """
    schema = getattr(server.contents_manager, "event_schema_id", None)
    if schema is None:
        return

    async def changed(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        del logger, schema_id
        if data.get("action") in _CHANGES:
            facts[FIELD] = datetime.now(UTC).isoformat()

    server.event_logger.add_listener(schema_id=schema, listener=changed)
