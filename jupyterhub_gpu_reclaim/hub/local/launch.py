"""Runs ``session_init/launcher.py`` and reads its report.

It waits for the launcher, which ends at once, and never for the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner.state import Location
from jupyterhub_gpu_reclaim.session_init import launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    Args:
        options: for the launcher.
        init: the init's command line.
        env: the init's whole environment.
        popen_kwargs: the administrator's options for ``subprocess.Popen``.
        seconds: time limit.

    Raises:
        Refused: it did not work, in the launcher's words, or took too long.
    """
    reader, writer = os.pipe()
    words = [*PYTHON, launcher.__file__, "--report-fd", str(writer)]
    try:
        process = Popen(  # noqa: ASYNC220 - starting it takes no time; as upstream
            [*words, *options, "--", *init],
            **{"stdin": DEVNULL, **_without_ignored(popen_kwargs)},
            env=dict(env),
            pass_fds=(writer,),
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        report = await asyncio.wait_for(_read_all(reader), seconds)
    except TimeoutError:
        process.kill()
        raise Refused(Reason.TIMED_OUT, step="launch", seconds=seconds) from None
    finally:
        await asyncio.to_thread(process.wait)
    return _place(report)


def _without_ignored(popen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in popen_kwargs.items() if name not in IGNORED}


async def _read_all(fd: int) -> bytes:
    """Read a pipe to its end without blocking the Hub."""
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(fd, "rb", 0)
    )
    try:
        # To the end, not what is there first: an error comes after the place.
        return await stream.read()
    finally:
        transport.close()


def _place(report: bytes) -> Location:
    """The launcher's report; its error is ours."""
    facts: dict[str, Any] = {}
    for line in report.splitlines():
        with contextlib.suppress(ValueError):
            facts.update(json.loads(line))
    if "error" in facts or not facts.get("start"):
        why = facts.get("error") or "Its init has not reported."
        raise Refused(Reason.LAUNCH_FAILED, why=why, detail=repr(report[:500]))
    return Location(pid=facts["pid"], start=facts["start"], boot=facts["boot"])
