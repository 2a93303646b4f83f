"""The cluster's double beside a Hub under test, and what is asked of its service."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time

import requests

from tests.support.cluster import Cluster
from tests.support.hub import API_TOKEN


class Elsewhere:
    """The cluster in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = self.do(Cluster)
        self.do(self.cluster.open)

    def do(self, call, *args):
        """Have something done there; its value."""

        async def done():
            value = call(*args)
            return await value if inspect.isawaitable(value) else value

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(30)

    def close(self) -> None:
        self.do(self.cluster.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


def reclaim(hub, method, path):
    return requests.request(
        method,
        f"{hub.url}/services/gpu-reclaim/api/{path}",
        headers={"Authorization": f"token {API_TOKEN}"},
        timeout=30,
    )


def wait(condition, hub, seconds=40):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s\n{hub.log()[-6000:]}")


def phase(hub, user):
    answer = reclaim(hub, "GET", f"sessions/{user}/-")
    return answer.json().get("phase") if answer.ok else answer.status_code
