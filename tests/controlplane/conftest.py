"""All parts of the service over the simulator's parts, in virtual time."""

import asyncio

from simulation.loop import VirtualLoop
from tests.support.simulated import world

__all__ = ["world"]


def pytest_asyncio_loop_factories(config, item):
    """The simulator's loop, for tests in its world, and of the queue of work."""
    in_it = {"world", "bench"} & {*item.fixturenames}
    return {"loop": VirtualLoop if in_it else asyncio.new_event_loop}
