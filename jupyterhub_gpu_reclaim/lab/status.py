"""Adds facts of ours to the server's status (``GET api/status``), for samples.

* After how long the server ends idle kernels, or itself: its own configuration decides
  that, which nothing else reads. Administrators are warned if it is before a suspend.
* When a file was last changed through the server: a person may write a text with no
  kernel and no terminal. Opening one is no change: pages do that by themselves.
* When a person last changed something through the server's pages (a commit in
  jupyterlab-git, say). The page marks such a request (``static/requests.js``). A mark
  says no more than its user could say by running a cell.
* The data of pages for their programs behind the server (jupyter-server-proxy).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from jupyter_server.services.api.handlers import APIStatusHandler
from jupyter_server.utils import url_path_join
from tornado.web import OutputTransform

try:
    from jupyter_server_proxy.handlers import ProxyHandler
except ImportError:
    ProxyHandler = None

#: Fields of the status: seconds, if there is such a culler; times, once that was done;
#: and bytes so far.
CULLS_AFTER: Final = "gpu_reclaim_culls_after"
FILE_CHANGED: Final = "gpu_reclaim_file_changed"
PERSON_ASKED: Final = "gpu_reclaim_person_asked"
PAGED: Final = "gpu_reclaim_paged"
#: Header of a marked request, as ``requests.js`` has it.
PERSON: Final = "X-GPU-Reclaim-Person"
_SETTING: Final = "gpu_reclaim_status"
_CHANGES_FILE: Final = frozenset({"copy", "create", "delete", "rename", "save"})
_CHANGES: Final = frozenset({"DELETE", "PATCH", "POST", "PUT"})


class StatusHandler(APIStatusHandler):  # type: ignore[misc,unused-ignore]
    def finish(self, chunk: Any = None) -> Any:
        facts = self.settings[_SETTING]
        if facts and self.get_status() == 200 and isinstance(chunk, str):
            chunk = json.dumps({**json.loads(chunk), **facts}, sort_keys=True)
        return super().finish(chunk)


def install(server: Any) -> None:
    facts: dict[str, Any] = {}
    kernels = getattr(server.kernel_manager, "cull_idle_timeout", 0)
    itself = getattr(server, "shutdown_no_activity_timeout", 0)
    if times := [seconds for seconds in (kernels, itself) if seconds > 0]:
        facts[CULLS_AFTER] = min(times)
    settings = server.web_app.settings
    settings[_SETTING] = facts
    path = url_path_join(settings["base_url"], "api/status")
    server.web_app.add_handlers(".*$", [(path, StatusHandler)])
    _note_changed_files(server, facts)
    _note_persons_requests(server, facts)
    if ProxyHandler is not None:
        _count_pages_data(facts)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _note_changed_files(server: Any, facts: dict[str, Any]) -> None:
    # A contents manager may have no events.
    schema = getattr(server.contents_manager, "event_schema_id", None)
    if schema is None:
        return

    async def changed(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        del logger, schema_id
        if data.get("action") in _CHANGES_FILE:
            facts[FILE_CHANGED] = _now()

    server.event_logger.add_listener(schema_id=schema, listener=changed)


def _note_persons_requests(server: Any, facts: dict[str, Any]) -> None:
    class Noted(OutputTransform):
        # It sees each answer, of whichever extension, and leaves it as it is. The
        # server's log function would see them too, but JupyterHub replaces it.

        def __init__(self, request: Any) -> None:
            super().__init__(request)
            self._marked = request.method in _CHANGES and PERSON in request.headers

        def transform_first_chunk(
            self, status_code: int, headers: Any, chunk: bytes, finishing: bool
        ) -> tuple[int, Any, bytes]:
            if self._marked and status_code < 300:  # neither refused nor led to a login
                facts[PERSON_ASKED] = _now()
            return super().transform_first_chunk(status_code, headers, chunk, finishing)

    server.web_app.add_transform(Noted)


def _count_pages_data(facts: dict[str, Any]) -> None:
    # From outside, only connections that last are seen, and no UNIX sockets; a page
    # that sends a request for each click (Dash, Gradio) is not. Path and body of each
    # request count, and each message of a websocket; no headers, nor what keeps one
    # alive.
    prepare, on_message = ProxyHandler.prepare, ProxyHandler.on_message
    facts[PAGED] = 0

    async def counted_request(self: Any, *args: Any, **kwargs: Any) -> None:
        prepared = prepare(self, *args, **kwargs)
        if prepared is not None:
            await prepared
        if self.current_user:  # others are refused
            facts[PAGED] += len(self.request.uri) + len(self.request.body)

    def counted_message(self: Any, message: str | bytes) -> Any:
        facts[PAGED] += len(message)
        return on_message(self, message)

    ProxyHandler.prepare, ProxyHandler.on_message = counted_request, counted_message
