"""Runs the administrator's own probe (``ReclaimService.probe``), with a time limit.

A command gets the session in two variables, and of our environment, which has secrets,
only where programs are. Each call has a thread of its own: one that hangs holds up no
other session, nor the end of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shlex
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.common.models import SessionKey

#: Seconds for an answer.
LIMIT = 10.0
#: Sessions that are asked about at the same time.
AT_ONCE = 8
#: Bytes of a line; what comes after it is not looked at.
_LINE = 4096
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
                    call = functools.partial(_run, shlex.split(probe), key, limit)
                    return str(await _in_thread(call))
            except TimeoutError:
                raise TimeoutError(f"no answer within {limit:g} s") from None

    return ask


def _run(words: list[str], key: SessionKey, limit: float) -> str:
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with subprocess.Popen(
        words,
        env={**own, "GPU_RECLAIM_USER": key.user, "GPU_RECLAIM_SERVER": key.server},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, end)
        timer.start()
        try:
            assert process.stdout is not None
            said = process.stdout.readline(_LINE)
            while process.stdout.read(_LINE):
                pass
            status = process.wait()
        finally:
            timer.cancel()
    if status:
        raise RuntimeError(f"it ended with status {status}")
    return said.decode("utf-8", "replace")


async def _in_thread(call: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def end(value: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = call()
        except Exception as raised:  # noqa: BLE001 - the administrator's
            error = raised
        with contextlib.suppress(RuntimeError):  # the service has ended meanwhile
            loop.call_soon_threadsafe(end, value, error)

    threading.Thread(target=run, name="probe", daemon=True).start()
    return await answer
