"""Watches for an agent that is gone for good, from a process that outlives it.

A captured session stays frozen until the agent releases or thaws it, and one that naps
stays without its GPU until the agent wakes it. An agent that
never comes back (removed, broken by a setting, killed again and again) would leave it
so for ever. This process sleeps until the agent has ended; when no other agent has
lived in its place for the given time, :mod:`.unattended` thaws every session that is
still frozen, and wakes every one that naps.

It guarantees that this happens only while no agent works on the same state folder: it
holds the agent's lock meanwhile. Until then it imports nothing but the standard
library, and stays small. It lives in no container's control group, so it writes its log
into the state folder: as long as somebody holds a container's output, the runtime takes
the container for running, and starts no other. Of the watchdogs of agents that end one
after the other, the first waits and the later ones end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = "agent.lock"
#: Held by the watchdog that waits for another agent; says how it was started.
WAITS = "watchdog.lock"
#: Log of the watchdogs; begun anew by an agent that finds more than so many bytes.
LOG = "watchdog.log"
_LOG_BYTES = 1 << 20
RECORDS = "records"
#: An agent that has held its lock for so long has settled what was left to settle.
_SETTLED_SECONDS = 60.0
_PAUSE = 1.0
#: Seconds until what could not be thawed is tried again; an agent can start meanwhile.
_LONG_PAUSE = 10.0
#: Looks at whether another watchdog waits: it may be about to end.
_LOOKS = 5


class Watched(NamedTuple):
    """Settings that the watched agent was started with; times in seconds."""

    state: Path
    placement: str
    realm: str
    patience: float  #: without an agent, until frozen sessions are let go on
    gpu_lock: float  #: as in ``TimeLimits``, like the next two
    dump: float
    criu: float


def start(watched: Watched) -> int:
    """Watch this process from another one, which does not end with it; its pid."""
    words = [str(value) for value in watched]
    command = [sys.executable, "-m", __name__, str(os.getpid()), *words]
    with (watched.state / LOG).open("ab") as log:
        if log.tell() > _LOG_BYTES:
            log.truncate(0)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # When we end, the machine's init reaps it; before that it does not end.
    process.returncode = 0
    return process.pid


def main() -> None:
    """Wait for the agent's end, then for another agent or the end of patience."""
    agent, *words = sys.argv[1:]
    state, placement, realm, *times = words
    watched = Watched(Path(state), placement, realm, *map(float, times))
    _wait_for_end(int(agent))
    if not (watched.state / RECORDS).is_dir():
        return
    with _turn(watched.state, " ".join(words)) as ours:
        if ours:
            _wait_for_another(watched)


@contextlib.contextmanager
def _turn(state: Path, words: str) -> Iterator[bool]:
    """Whether to wait for another agent: not where an earlier watchdog does.

    Its patience ends sooner, and agents that end again and again would leave more and
    more of them. One that was started with other words may do something else.
    """
    for _ in range(_LOOKS):
        with lock(state, WAITS) as free:
            if free:
                (state / WAITS).write_text(words)
            if free or (state / WAITS).read_text() != words:
                yield True
                return
        time.sleep(_PAUSE)
    yield False


def _wait_for_another(watched: Watched) -> None:
    begun = time.monotonic()
    held_since: float | None = None
    while (watched.state / RECORDS).is_dir():
        pause = _PAUSE
        with lock(watched.state) as free:
            now = time.monotonic()
            if not free:
                held_since = held_since or now
                if now - held_since >= _SETTLED_SECONDS:
                    return  # that agent has a watchdog of its own
            elif not any((watched.state / RECORDS).iterdir()):
                return
            else:
                held_since = None
                if now - begun >= watched.patience:
                    if _thaw_all(watched):
                        return
                    pause = _LONG_PAUSE
        time.sleep(pause)


@contextlib.contextmanager
def lock(state: Path, name: str = LOCK) -> Iterator[bool]:
    """The lock that an agent holds for as long as it lives; whether it is ours now."""
    descriptor = os.open(state / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _wait_for_end(agent: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(agent)
        if os.getppid() == agent:  # else it has ended, and that pid is another's
            select.select([descriptor], [], [])
        os.close(descriptor)


def _thaw_all(watched: Watched) -> bool:
    from jupyterhub_gpu_reclaim.node.workflows import unattended  # noqa: PLC0415 - see the top

    return unattended.thaw_all(watched)


if __name__ == "__main__":
    main()
