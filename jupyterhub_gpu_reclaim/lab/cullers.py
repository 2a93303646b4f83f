"""Tells after how long the server itself ends idle kernels, or itself.

Its own configuration decides that, from the image, a volume or its user's files, which
nothing else reads. Administrators are warned if that comes before a suspend.
"""

from __future__ import annotations

from typing import Any, Final

#: Field of the server's status, in seconds, where there is such a culler.
FIELD: Final = "gpu_reclaim_culls_after"


def install(server: Any, facts: dict[str, Any]) -> None:
    """Read a ``ServerApp``'s settings once: they hold as long as it runs."""
    kernels = getattr(server.kernel_manager, "cull_idle_timeout", 0)
    itself = getattr(server, "shutdown_no_activity_timeout", 0)
    if times := [seconds for seconds in (kernels, itself) if seconds > 0]:
        facts[FIELD] = min(times)
