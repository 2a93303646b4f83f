"""Keeps a page's own questions to a kernel from counting as use of that kernel.

The server notes when a kernel was last active. An unattended page may ask its kernel
for its use every few seconds (jupyter-resource-usage), and would keep a GPU for ever.
The server has a list of kinds that do not count, on which some are missing.
"""

from __future__ import annotations

from typing import Any

from jupyterhub_gpu_reclaim.common.kernel_messages import QUIET_REQUESTS


def install(manager: Any) -> None:
    # A gateway's manager has no such list.
    known = getattr(manager, "untracked_message_types", None)
    if known is None:
        return
    replies = {kind.replace("_request", "_reply") for kind in QUIET_REQUESTS}
    added = (QUIET_REQUESTS | replies) - set(known)
    manager.untracked_message_types = [*known, *sorted(added)]
