"""Keeps a notebook's kernel from being replaced by a page that does not know it yet.

JupyterLab 4 shows a notebook before it has read which kernels the server runs. A cell
that is run in between makes the page ask for a new one; once that is up, the page
deletes the session that it has found meanwhile, and with it the kernel and all
variables. Our extension makes the cell wait (``attach.js``). This is the same promise
on the server's side, for pages without the extension: a notebook that has a kernel of
that kind gets that one, and a kernel lives as long as one of its sessions. "Restart
Kernel" and "Change Kernel" are other calls.
"""

from __future__ import annotations

import uuid
from typing import Any


def install(manager: Any) -> None:
    """Wrap the calls of a ``SessionManager`` that start and end kernels."""
    create, delete = manager.create_session, manager.delete_session

    async def create_session(**asked: Any) -> Any:
        path, name = asked.get("path") or "", asked.get("name") or ""
        named = asked.get("type") == "notebook" and path and name
        if named and asked.get("kernel_id") is None:
            kind = asked.get("kernel_name")
            asked["kernel_id"] = await _kernel_of(manager, path, name, kind)
        return await create(**asked)

    async def delete_session(session_id: str) -> None:
        ended = await manager.get_session(session_id=session_id)
        others = [
            session
            for session in await manager.list_sessions()
            if session["kernel"]["id"] == ended["kernel"]["id"]
            and session["id"] != session_id
        ]
        if not others:
            await delete(session_id)
            return
        kept = ended["kernel"]["id"]
        manager.log.info("kernel %s has another session; it stays", kept)
        manager.cursor.execute("DELETE FROM session WHERE session_id=?", (session_id,))

    manager.create_session = create_session
    manager.delete_session = delete_session


async def _kernel_of(
    manager: Any, path: str, name: str, kernel_name: str | None
) -> str | None:
    """The notebook's kernel of that kind; of any kind without a ``kernel_name``."""
    # JupyterLab's ``path`` is the notebook's folder and a uuid; ``name`` is its file.
    folder, slash, last = path.rpartition("/")
    if not _is_uuid(last):
        return None
    for session in await manager.list_sessions():
        same = (
            session["type"] == "notebook"
            and session["path"] == f"{folder}{slash}{name}"
        )
        if same and kernel_name in {None, session["kernel"]["name"]}:
            found = str(session["kernel"]["id"])
            manager.log.info("%s has kernel %s already", session["path"], found)
            return found
    return None


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
