"""The cluster's double beside a Hub under test, and what is asked of its service."""

import asyncio
import inspect
import threading

import requests

from tests.support.cluster import Cluster
from tests.support.hub import API_TOKEN, wait_until


class Elsewhere:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = self.do(Cluster)
        self.do(self.cluster.open)

    def do(self, call, *args):
        async def done():
            value = call(*args)
            return await value if inspect.isawaitable(value) else value

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(30)

    def close(self) -> None:
        self.do(self.cluster.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


def reclaim(hub, method, path):
    return requests.request(
        method,
        f"{hub.url}/services/gpu-reclaim/api/{path}",
        headers={"Authorization": f"token {API_TOKEN}"},
        timeout=30,
    )


def wait(condition, hub, seconds=40):
    return wait_until(condition, seconds, hub.log)


def suspended(hub, user, seconds=40):
    """Wait until it is; if it is not, say what the session tells."""

    def told():
        view = reclaim(hub, "GET", f"sessions/{user}/-").text
        return f"{hub.log()[-20000:]}\n{view}"

    wait_until(lambda: phase(hub, user) == "suspended", seconds, told)


def phase(hub, user):
    answer = reclaim(hub, "GET", f"sessions/{user}/-")
    return answer.json().get("phase") if answer.ok else answer.status_code
