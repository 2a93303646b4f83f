"""Reports of the service to its supervisor: ready, alive, or what prevents it.

Lines of JSON on a pipe that the child inherits together with the listening socket; the
variable :data:`SUPERVISED` names both. A service without a supervisor reports nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping

#: The supervisor's pid, numbers of the pipe and of the listening sockets: ``99,3,4,5``.
SUPERVISED = "GPU_RECLAIM_SUPERVISED"
#: Seconds after which a child without a sign of life is taken for hung; sessions are
#: not concerned. A short time takes a busy machine for a hung program.
HUNG_SECONDS = 60.0
#: Signs of life in that time.
BEATS = 12
_MAX_LINE = 64 * 1024


@dataclass
class Reporter:
    """The child's end."""

    listening: tuple[int, ...] = ()
    pipe: int | None = None
    supervisor: int = 0  #: its pid; 0: there is none

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Reporter:
        """Read the environment, and remove the variable, so no child inherits it."""
        words = environment.pop(SUPERVISED, "").split(",")
        if len(words) < 3:
            return cls()
        supervisor, pipe, *listening = map(int, words)
        for number in (pipe, *listening):
            os.set_inheritable(number, False)
        return cls(tuple(listening), pipe, supervisor)

    def sockets(self) -> list[socket.socket]:
        """The listening sockets; none if none were passed."""
        made = [socket.socket(fileno=number) for number in self.listening]
        for each in made:
            each.setblocking(False)
        return made

    def report(self, name: str, text: str = "") -> None:
        """Report; a missing reader is no error."""
        if self.pipe is None:
            return
        line = json.dumps([name, text[:4096]]) + "\n"
        with suppress(OSError):
            os.write(self.pipe, line.encode())

    async def beat(self) -> None:
        """Report for ever that the event loop moves.

        If the pipe is full because there is no reader, nothing blocks.
        """
        while self.pipe is not None:
            if select.select([], [self.pipe], [], 0)[1]:
                self.report("moves")
            await asyncio.sleep(HUNG_SECONDS / BEATS)


class Pulse:
    """The supervisor's end of :meth:`Reporter.beat`."""

    def __init__(self) -> None:
        self._heard = 0

    def heard(self) -> None:
        """Note a beat."""
        self._heard += 1

    async def silences(self) -> AsyncIterator[int]:
        """Yield for how many of :data:`BEATS` it has been silent, after each.

        This is counted, and not read from a clock: while this process itself is
        stopped, it receives nothing either.
        """
        silent = 0
        while True:
            before = self._heard
            await asyncio.sleep(HUNG_SECONDS / BEATS)
            silent = silent + 1 if self._heard == before else 0
            yield silent


async def heard(reading: int) -> AsyncIterator[tuple[str, str]]:
    """Yield reports from the pipe, and close it at its end, the child's."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    try:
        while line := await reader.readline():
            name, text = json.loads(line)
            yield str(name), str(text)
    finally:
        transport.close()
