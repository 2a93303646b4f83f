"""Sends an asynchronous stream to an HTTP client that may leave at any time.

A silent source must not hide that the reader has gone, and a stuck reader must not fill
our memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from tornado.iostream import StreamClosedError

from jupyterhub_gpu_reclaim.service.api.base import Route

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from tornado.web import RequestHandler

T = TypeVar("T")


class Streaming(Route):
    """A route whose answer goes on until its reader has left."""

    def initialize(self) -> None:
        self._left = asyncio.Event()

    def on_connection_close(self) -> None:
        self._left.set()


async def with_pauses(
    source: AsyncIterator[T], *, pause: float, left: asyncio.Event
) -> AsyncGenerator[T | None]:
    """Yield the source's items, and None at its start and after every silence.

    It ends at once when ``left`` is set: the reader has gone.
    """
    gone = asyncio.ensure_future(left.wait())
    item = asyncio.ensure_future(anext(source))
    try:
        await asyncio.sleep(0)  # the source has begun to listen before we say so
        yield None
        while True:
            done, _ = await asyncio.wait(
                {gone, item}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            if gone in done:
                return
            if not done:
                yield None
                continue
            try:
                value = item.result()
            except StopAsyncIteration:
                return
            yield value
            item = asyncio.ensure_future(anext(source))
    finally:
        gone.cancel()
        item.cancel()
        await asyncio.gather(gone, item, return_exceptions=True)
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


async def flushed(handler: RequestHandler, *, limit: float) -> bool:
    """Send what was written; False when the reader is gone or takes nothing.

    A reader that took nothing for ``limit`` seconds is cut off.
    """
    try:
        await asyncio.wait_for(handler.flush(), limit)
    except StreamClosedError:
        return False
    except TimeoutError:
        with contextlib.suppress(StreamClosedError, AttributeError):
            handler.detach().close()
        return False
    return True
