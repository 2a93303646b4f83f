"""Labels that say whose session a container of Docker was made for.

The Hub's spawner writes them, and the node's agent reads them from Docker.
"""

from __future__ import annotations

from typing import Final

INCARNATION: Final = "gpu-reclaim.incarnation"
USER: Final = "gpu-reclaim.user"
SERVER: Final = "gpu-reclaim.server"
REALM: Final = "gpu-reclaim.realm"
SESSION: Final = "gpu-reclaim.session"
ACCOUNT: Final = "gpu-reclaim.account"
