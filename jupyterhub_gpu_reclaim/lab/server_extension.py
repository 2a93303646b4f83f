"""Jupyter Server extension: open tabs' tokens, notebooks' kernels, facts about use.

Jupyter Server loads it where the package is installed in the session's environment
(``etc/jupyter/jupyter_server_config.d``). It has one call, open to everyone who may use
that server and sends its XSRF token. Next: ``common/auth/tab_tokens.py``.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import authenticated

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.kernel_messages import QUIET_REQUESTS
from jupyterhub_gpu_reclaim.lab import kernel_keeper, prompts, status


class PassHandler(APIHandler):  # type: ignore[misc,unused-ignore]
    #: An open tab does not count as use.
    _track_activity = False

    @authenticated
    def post(self) -> None:
        # A POST, so that the XSRF token is always needed.
        text = tab_tokens.made(os.environ, time.time())
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps({"pass": text}))


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    path = url_path_join(server.web_app.settings["base_url"], "gpu-reclaim/pass")
    server.web_app.add_handlers(".*$", [(path, PassHandler)])
    kernel_keeper.install(server.session_manager)
    _quieten(server.kernel_manager)
    prompts.install(server.kernel_manager)
    status.install(server)


def _quieten(manager: Any) -> None:
    """Let a page's own questions to a kernel not count as use of that kernel."""
    # An unattended page may ask its kernel for its use every few seconds
    # (jupyter-resource-usage). The server's list of such kinds lacks some.
    known = getattr(manager, "untracked_message_types", None)
    if known is None:  # a gateway's manager has no such list
        return
    replies = {kind.replace("_request", "_reply") for kind in QUIET_REQUESTS}
    added = (QUIET_REQUESTS | replies) - set(known)
    manager.untracked_message_types = [*known, *sorted(added)]
