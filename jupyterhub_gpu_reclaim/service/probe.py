"""Runs the administrator's own probe (``ReclaimService.probe``), with a time limit.

It gets the session in two variables, and of our environment, which has secrets, only
where programs are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.models import SessionKey

#: Seconds for an answer.
LIMIT = 10.0
#: Sessions that are asked about at the same time.
AT_ONCE = 8
#: Bytes of an answer; what comes after it is not looked at.
_LONGEST = 4096
_KEPT = ("PATH", "LANG", "HOME", "TZ")


def asking(
    probe: str, limit: float = LIMIT
) -> Callable[[SessionKey], Awaitable[str]] | None:
    """Make what asks the probe about a session; None: there is none."""
    if not probe:
        return None
    few = asyncio.Semaphore(AT_ONCE)

    async def ask(key: SessionKey) -> str:
        async with few:
            try:
                async with asyncio.timeout(limit):
                    return await _run(shlex.split(probe), key)
            except TimeoutError:
                raise TimeoutError(f"no answer within {limit:g} s") from None

    return ask


async def _run(words: list[str], key: SessionKey) -> str:
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *words,
        env={**own, "GPU_RECLAIM_USER": key.user, "GPU_RECLAIM_SERVER": key.server},
        stdin=DEVNULL,
        stdout=PIPE,
        start_new_session=True,
    )
    said = b""
    try:
        assert process.stdout is not None
        while more := await process.stdout.read(_LONGEST):
            said = (said + more)[:_LONGEST]
        status = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait_for(process.wait(), 1)
        # One that has left its group may hold the pipe: nobody else lets go of our end.
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
    if status:
        raise RuntimeError(f"it ended with status {status}")
    return said.partition(b"\n")[0].decode("utf-8", "replace")
