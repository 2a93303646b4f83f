"""The processes of a local session, identified by (pid, start time, boot).

It reads ``/proc`` and signals through pidfds, so a process that gets the pid later is
never touched. It starts nothing.

A server that LocalProcessSpawner itself started, before ours took its place, has left a
pid and nothing else. Whether that is still the server is decided by facts that no other
user's process can have: it runs as the server's system user, leads a session, and began
when the Hub started the server. Nothing is read that its user could block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.session_init import command_line

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
    from datetime import datetime


def boot_id() -> str:
    """Id of this boot of the machine; pids of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def location(pid: int, start: int) -> Location:
    return Location(pid=pid, start=start, boot=boot_id())


class LocalSession:
    """The processes under one init."""

    def __init__(self, place: Location) -> None:
        self.place = place
        self._init = processes.Process(place.pid, 1, 0, "", "", place.start, 0)

    def alive(self) -> bool:
        """Whether that very init lives (a zombie does not)."""
        place = self.place
        return self._is_of_now() and processes.start_time(place.pid) == place.start

    def _is_of_now(self) -> bool:
        place = self.place
        return place.pid != 0 and (not place.boot or place.boot == boot_id())

    def signal(self, number: signal.Signals) -> bool:
        """Signal the init; False if it is gone."""
        return self.alive() and processes.send(self._init, number)

    async def wait(self, seconds: float) -> bool:
        """Wait until the init is dead; False if it still lives after that time."""
        # In the event loop: the Hub has few threads, and may stop many sessions at
        # once.
        if not self._is_of_now():
            return True
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        with processes.held(self._init, whole=True) as fd:
            if fd is None:
                return True
            loop.add_reader(fd, dead.set)
            try:
                async with asyncio.timeout(seconds):
                    await dead.wait()
            except TimeoutError:
                return False
            finally:
                loop.remove_reader(fd)
        return True

    def frozen(self) -> bool:
        """Whether the session's root is stopped, as in a captured tree."""
        states = [procfs.stat(pid)[:1] for pid in self._children()]
        return bool(states) and all(state in (["T"], ["t"]) for state in states)

    def variable(self, name: str) -> str:
        """A variable of the environment that the session's root was started with."""
        wanted = f"{name}=".encode()
        for pid in self._children():
            with contextlib.suppress(OSError):
                for word in procfs.words(pid, "environ"):
                    if word.startswith(wanted):
                        return word[len(wanted) :].decode(errors="replace")
        return ""

    def _children(self) -> Iterator[int]:
        if not self.alive():
            return
        # The init may end at any moment, and its threads with it.
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{self.place.pid}/task").glob("*/children"):
                yield from map(int, path.read_text().split())


def find_session(incarnation: str) -> Location | None:
    """The init of an incarnation on this machine: root's, pid 1 of its namespace."""
    for pid in procfs.pids():
        owner = procfs.target_status(pid, "")
        if owner is None or owner.st_uid != 0:
            continue
        try:
            # The command line last: that of a user's process may block its reader.
            if not processes.is_namespace_init(procfs.read(pid, "status")):
                continue
            words = procfs.read(pid, "cmdline").split(b"\0")
        except OSError:
            continue
        found = command_line.parse(words)
        if found is not None and found.incarnation == incarnation:
            start = processes.start_time(pid)
            if start:
                return location(pid, start)
    return None


#: Seconds by which the Hub's note of a start and the process may differ: a slow start
#: hook lies between, or a clock that was set.
_BETWEEN = 900.0


def find_former(pid: int, uid: int, started: datetime | None) -> Location:
    """A former server's process, of that uid; the empty location if it has ended.

    ``started`` is when the Hub started it, in UTC without a zone; None: unknown.
    """
    try:
        server = processes.snapshot_init(pid)
        leads = os.getsid(pid) == pid
    except (NotFound, OSError):
        return Location()
    # One in a namespace is a session of ours.
    if server.uid != uid or server.ns_pid != pid or not leads:
        return Location()
    start = server.start_time
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")
    if started is not None:
        noted = started.replace(tzinfo=started.tzinfo or UTC).timestamp()
        if abs(time.time() - age - noted) > _BETWEEN:
            return Location()
    return location(pid, start)
