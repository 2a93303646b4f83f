"""Runs blocking libraries in threads that the end of the service does not wait for.

``asyncio.to_thread`` would hold the service up until a mail server answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def in_thread(work: Callable[[], None]) -> None:
    """Do some work in a thread of its own, and raise here what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as caught:  # noqa: BLE001 whatever it is, the waiter gets it
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name="notice", daemon=True).start()
    await done
