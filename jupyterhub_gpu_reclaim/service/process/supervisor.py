"""``jupyterhub-gpu-reclaim-service``: keeps the address, runs the service behind it.

JupyterHub ends itself if a managed service exits, or does not answer, while the Hub
starts. So this small program, which imports next to nothing, answers at once at the
address (``held_socket.py``) and stays whatever happens: the service proper (``app.py``)
is its child, which takes the connections over when it is ready. Until then, and
whenever the child has ended or hangs,
:class:`~jupyterhub_gpu_reclaim.service.process.standin.StandIn` says why, and the child
is started again, each time a little later. It ends with its Hub, or when told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.service.process import held_socket, lifeline
from jupyterhub_gpu_reclaim.service.process.reporting import (
    BEATS,
    HUNG_SECONDS,
    SUPERVISED,
    Pulse,
    heard,
)
from jupyterhub_gpu_reclaim.service.process.standin import StandIn
from jupyterhub_gpu_reclaim.service.settings.environment import (
    PROBLEMS,
    SPAWNER_SOCKET,
    address_of,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

#: Seconds until the next start of a child that ended, at first and at most.
SOONEST, LATEST = 1.0, 60.0
#: A child that was ready for so many seconds has not failed at its start.
_STEADY = 60.0
#: Seconds that a child has to end when it is told to; its orderly end takes less.
_FAREWELL = 12.0
_PROGRAM = "from jupyterhub_gpu_reclaim.service.app import main; main()"
_CHILD = (sys.executable, "-P", "-c", _PROGRAM)


class Supervisor:
    """Keeps one child alive behind one address.

    Args:
        command: the child's.
        environment: the child's; it says where to listen, and what is wrong already.

    Raises:
        Refused: the environment has no address: not started by a Hub.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = dict(environment)
        self._problems = _problems(environment)
        self._host, self._port, self._prefix = address_of(environment)
        self._ending = asyncio.Event()
        self._delay = self._wait = SOONEST
        self._standin: StandIn

    async def run(self) -> None:
        """Run until told to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending.set)
        hub = lifeline.die_with_parent(lifeline.hub_of(self._environment))
        lifeline.watch(hub, self._ending.set)
        listening = await self._listen()
        if listening is None:
            return
        try:
            path = Path(self._environment[SPAWNER_SOCKET])
            sockets = [listening, unix_sockets.listening(path)]
        except (KeyError, OSError) as error:
            _log(f"The spawner's socket cannot be made: {error}.")
            sockets = [listening]
        self._standin = StandIn(sockets, self._prefix)
        self._standin.begin()
        if self._problems:
            self._show_problems(" ".join(self._problems))
            await self._ending.wait()
        while not self._ending.is_set():
            await self._run_child(sockets)
            await self._pause(self._wait)
        self._standin.end()

    async def _listen(self) -> socket.socket | None:
        """The address, as soon as it is free; None: told to end before."""
        logged = ""
        while not self._ending.is_set():
            try:
                return held_socket.taken(
                    self._environment, self._port
                ) or held_socket.listening(self._host, self._port)
            except OSError as error:
                why = (
                    f"The address {self._host}:{self._port} cannot be used:"
                    f" {error.strerror or error}."
                )
                if why != logged:  # a predecessor needs a moment to end
                    _log(f"{why} Trying on.")
                logged = why
                await self._pause(held_socket.AGAIN)
        return None

    async def _run_child(self, sockets: Sequence[socket.socket]) -> None:
        """Start the child, read its reports, and see it end."""
        reading, writing = os.pipe()
        numbers = [each.fileno() for each in sockets]
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env={
                    **self._environment,
                    SUPERVISED: ",".join(map(str, [os.getpid(), writing, *numbers])),
                },
                pass_fds=(writing, *numbers),
                stdin=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            os.close(reading)
            self._show_failure(f"It cannot be started: {error.strerror}.")
            return
        finally:
            os.close(writing)
        tasks = [asyncio.ensure_future(self._end_child(child))]
        ready = why = ""
        began = time.monotonic()
        pulse = Pulse()
        async for name, text in heard(reading):
            if name == "ready":
                ready, began = "yes", time.monotonic()
                self._standin.end()
                tasks.append(asyncio.ensure_future(self._watch(child, pulse)))
            elif name == "moves":
                pulse.heard()
            elif name == "failed":
                why = text
        status = await child.wait()
        for task in tasks:
            task.cancel()
        if self._ending.is_set():
            return
        self._standin.begin()
        if ready and time.monotonic() - began >= _STEADY:
            self._delay = SOONEST
        self._show_failure(
            why or ("" if ready else _describe_end(status)), _describe_end(status)
        )

    def _show_failure(self, why: str, detail: str = "") -> None:
        """Show the reason, and wait longer next time; without one, just start it."""
        self._standin.why = why
        self._wait, self._delay = self._delay, min(2 * self._delay, LATEST)
        _log(f"{why or detail} Started again in {self._wait:.0f} s.")

    def _show_problems(self, why: str) -> None:
        self._standin.why = why
        _log(f"Every session is left alone: {why}")

    async def _end_child(self, child: asyncio.subprocess.Process) -> None:
        await self._ending.wait()
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
            await asyncio.sleep(_FAREWELL)
            child.kill()

    async def _watch(self, child: asyncio.subprocess.Process, pulse: Pulse) -> None:
        """End a hung child; the stand-in answers in its place for a while first."""
        async for silent in pulse.silences():
            if silent >= BEATS:
                _log(f"It has not moved for {HUNG_SECONDS:g} s, and is ended.")
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                return
            if silent >= BEATS // 4:
                self._standin.begin()
            elif not silent:
                self._standin.end()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)


def _problems(environment: Mapping[str, str]) -> list[str]:
    """Read what ``configure(c)`` found wrong with the settings, in sentences."""
    with contextlib.suppress(ValueError):
        found = json.loads(environment.get(PROBLEMS) or "[]")
        return [str(each) for each in found]
    return ["The settings are wrong; the Hub's log says why."]


def _describe_end(status: int) -> str:
    """Say how a child has ended."""
    if status < 0:
        return f"Its program was ended by signal {-status}."
    return f"Its program ended with status {status}; the Hub's log says why."


def _log(what: str) -> None:
    """Write a line into the Hub's log."""
    sys.stderr.write(f"jupyterhub-gpu-reclaim-service: {what}\n")
    sys.stderr.flush()


def main() -> None:
    """Keep the service running; without a Hub's environment, say so and exit with 1."""
    command = [*_CHILD, *sys.argv[1:]]
    if any(word in {"-h", "--help", "--help-all", "--version"} for word in command):
        os.execv(command[0], command)  # noqa: S606 - ourselves, and no shell
    try:
        asyncio.run(Supervisor(command, os.environ).run())
    except Refused as error:
        _log(error.message)
        sys.exit(1)


if __name__ == "__main__":
    main()
