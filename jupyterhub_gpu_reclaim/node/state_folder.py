"""The agent's state folder: its place and its lock.

The place comes from the environment (``GPU_RECLAIM_AGENT_STATE``), or is the default;
never from the configuration file. So stopped sessions are found even if that file is
broken (``workflows.rescue``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME: Final = "/var/lib/jupyterhub-gpu-reclaim"
#: The agent's settings; read by the agent and by the commands ``store``.
AGENT_FILE: Final = "/etc/jupyterhub-gpu-reclaim/agent.py"
DEFAULT: Final = f"{HOME}/agent"
VARIABLE: Final = "GPU_RECLAIM_AGENT_STATE"
RECORDS: Final = "records"
HELD: Final = "held"  #: registers of threads that are made to call
_LOCK: Final = "agent.lock"


def place() -> Path:
    return Path(os.environ.get(VARIABLE) or DEFAULT)


@contextlib.contextmanager
def lock(state: Path) -> Iterator[bool]:
    """The lock that an agent holds for as long as it lives; whether it is ours now."""
    descriptor = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
