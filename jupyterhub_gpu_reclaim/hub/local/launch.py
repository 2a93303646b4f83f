"""Runs ``session_init/launcher.py`` and reads its report.

It waits for the launcher, which ends at once, and never for the session. A launch that
is cancelled or takes too long leaves no session behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.local.processes import LocalSession, location
from jupyterhub_gpu_reclaim.session_init import launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.hub.spawner.state import Location

#: Seconds for an abandoned launcher to report its session.
_END_SECONDS = 5.0
#: Seconds for which a cancelled start is held up; the Hub gives it one (trap T9).
_HELD_UP_SECONDS = 0.5
_endings: set[asyncio.Task[None]] = set()  # asyncio keeps no task alive by itself
#: Root's own interpreter, which must not import the user's modules.
PYTHON = [sys.executable, "-I", "-S"]
#: ``popen_kwargs`` that would break the launch.
IGNORED = {"env", "shell", "pass_fds", "close_fds"}


async def run(
    options: list[str],
    init: list[str],
    env: Mapping[str, str],
    popen_kwargs: Mapping[str, Any],
    *,
    seconds: float,
) -> Location:
    """Make a session's namespaces and its init; returns the init's place.

    ``options`` are the launcher's, ``init`` is the init's command line, with ``env`` as
    its whole environment.

    Raises:
        Refused: it failed, in the launcher's words, or took too long; nothing of it
            stays.
    """
    reader, writer = os.pipe()
    known = {name: v for name, v in popen_kwargs.items() if name not in IGNORED}
    words = [*PYTHON, launcher.__file__, "--report-fd", str(writer)]
    try:
        process = Popen(  # noqa: ASYNC220 - starting it takes no time; as upstream
            [*words, *options, "--", *init],
            **{"stdin": DEVNULL, **known},
            env=dict(env),
            pass_fds=(writer,),
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    facts: dict[str, Any] = {}
    reading = asyncio.create_task(_read(reader, facts))
    try:
        await _ended(reading, seconds)
        await asyncio.to_thread(process.wait)
    except BaseException:
        ending = asyncio.create_task(_end_launch(process, reading, facts))
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        await asyncio.wait({ending}, timeout=_HELD_UP_SECONDS)
        raise
    if "error" in facts or not facts.get("start"):
        why = facts.get("error") or "Its init has not reported."
        raise Refused(Reason.LAUNCH_FAILED, why=why, detail=repr(facts))
    return location(facts["pid"], facts["start"])


async def _read(descriptor: int, facts: dict[str, Any]) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", 0)
    )
    try:
        # To its end: an error comes after the place.
        async for line in stream:
            facts.update(json.loads(line))
    finally:
        transport.close()


async def _ended(reading: asyncio.Task[None], seconds: float) -> None:
    await asyncio.wait({reading}, timeout=seconds)
    if not reading.done():
        raise Refused(Reason.TIMED_OUT, step="launch", seconds=seconds)
    reading.result()


async def _end_launch(
    process: Popen[bytes], reading: asyncio.Task[None], facts: dict[str, Any]
) -> None:
    # It ends by itself; killed before it has reported, its init would be unknown.
    await asyncio.wait({reading}, timeout=_END_SECONDS)
    process.kill()
    await asyncio.to_thread(process.wait)
    if facts.get("start"):
        LocalSession(location(facts["pid"], facts["start"])).signal(signal.SIGKILL)
