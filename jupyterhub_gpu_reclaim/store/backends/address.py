"""Opens the backend of a path, an address or a ``spec``, also in another process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends import object_options
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.objects import ObjectsBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.store.backend import Backend, Spec

PATIENCE_SECONDS = 60.0


def spec_of(
    url: str,
    *,
    options: Mapping[str, str] | None = None,
    options_file: str = "",
    patience: float = PATIENCE_SECONDS,
    reserve: int = 0,
) -> Spec:
    """The spec of a folder's path, a ``file://`` address or an object store's.

    Requests are repeated for ``patience`` seconds; ``reserve`` bytes of a folder's file
    system stay free. Raises ``BadRequest``.
    """
    path = url.removeprefix("file://")
    if path.startswith("/"):
        if options or options_file:
            raise BadRequest(Reason.INVALID, what="A folder has no store options.")
        return {"kind": "folder", "path": path, "reserve": reserve}
    object_options.check(url, options or {})
    return {
        "kind": "objects",
        "url": url,
        "options": dict(options or {}),
        "options_file": options_file,
        "patience": patience,
    }


def open_backend(spec: Spec) -> Backend:
    """The backend of a spec; an object store is not contacted yet."""
    match spec.get("kind"):
        case "folder":
            return FolderBackend(Path(spec["path"]), reserve=spec["reserve"])
        case "objects":
            # A file that cannot be read is said now, not at first use.
            object_options.read_options(spec["options_file"])
            return ObjectsBackend(spec)
    raise BadRequest(Reason.INVALID, what="That does not describe a store.")
