"""Tells when a person last changed something through the server's pages.

A person who commits in jupyterlab-git, or scales a cluster in dask-labextension, may
use no kernel, no terminal and no file of the server's, and their requests look like
those that open pages send by themselves. The page knows which requests a person caused,
and marks them (``labextension/static/requests.js``); the time of the last one that the
server has done is added to its status.

A mark says no more than a user of the server could say by running a cell: a request
that was refused, or sent to a login, does not count.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from tornado.web import OutputTransform

#: Field of the server's status, once there was such a request.
FIELD: Final = "gpu_reclaim_person_asked"
#: Header of a marked request, as ``requests.js`` has it.
HEADER: Final = "X-GPU-Reclaim-Person"
_CHANGES: Final = frozenset({"DELETE", "PATCH", "POST", "PUT"})


def install(server: Any, facts: dict[str, Any]) -> None:
    class Noted(OutputTransform):
        """Sees each answer, of whichever extension, and leaves it as it is.

        The server's log function would see them too, but JupyterHub replaces it.
        """

        def __init__(self, request: Any) -> None:
            super().__init__(request)
            self._marked = request.method in _CHANGES and HEADER in request.headers

        def transform_first_chunk(
            self, status_code: int, headers: Any, chunk: bytes, finishing: bool
        ) -> tuple[int, Any, bytes]:
            if self._marked and status_code < 300:
                facts[FIELD] = datetime.now(UTC).isoformat()
            return super().transform_first_chunk(status_code, headers, chunk, finishing)

    server.web_app.add_transform(Noted)
