"""The agent's state folder: its place and its lock.

The place comes from the command line (``--AgentApp.state_dir``), the environment
(``GPU_RECLAIM_AGENT_STATE``), or is the default; never from the configuration file. So
stopped sessions are found even if that file is broken (``workflows.rescue``).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOME: Final = "/var/lib/jupyterhub-gpu-reclaim"
#: The agent's settings; read by the agent and by the commands ``store``.
AGENT_FILE: Final = "/etc/jupyterhub-gpu-reclaim/agent.py"
DEFAULT: Final = f"{HOME}/agent"
VARIABLE: Final = "GPU_RECLAIM_AGENT_STATE"
RECORDS: Final = "records"
HELD: Final = "held"  #: registers of threads that are made to call
_OPTION: Final = "--AgentApp.state_dir"
_LOCK: Final = "agent.lock"


def place(words: Sequence[str], environment: Mapping[str, str]) -> Path:
    """The state folder of an agent with these words on its command line."""
    said = environment.get(VARIABLE) or DEFAULT
    for word, following in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name == _OPTION:
            said = value if equals else following
    return Path(said)


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
