"""Labels of a Docker container: whose session it is, by the Hub for the agent."""

from __future__ import annotations

from typing import Final

INCARNATION: Final = "gpu-reclaim.incarnation"
USER: Final = "gpu-reclaim.user"
SERVER: Final = "gpu-reclaim.server"
REALM: Final = "gpu-reclaim.realm"
SESSION: Final = "gpu-reclaim.session"
ACCOUNT: Final = "gpu-reclaim.account"
