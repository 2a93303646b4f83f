"""A restart of the service: until it answers starts, and what it asks meanwhile.

    .venv/bin/python -m benchmarks.restart --suspended 1000 --running 200

The real controller starts, with its journal on disk, over an agent and a Hub in memory
that answer at once and count what they are asked; each call would cost a real service
one way over the network, and a list of the store as long as its manifests take. As it
starts, users of suspended sessions ask for them: the first one, and 50 at once. With
its journal, and with an empty one, from which every session has to be found again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.still_node import StillAgent, StillHub
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.controlplane.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.sampling.window import Window

AT_ONCE = 50
COUNTED = ("trees", "tree", "checkpoints", "identity", "samples", "servers", "server")


class Counted:
    """An agent or a Hub that counts what it is asked.

    Args:
        asked: is counted up: the call, and whether it was about one session.
        of: answers.
    """

    def __init__(self, asked: Counter[str], of: Any) -> None:
        self._asked = asked
        self._of = of

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._of, name)
        if name not in COUNTED:
            return call

        def counted(*args: Any, **more: Any) -> Any:
            one = any(isinstance(each, SessionKey | str) for each in args)
            self._asked[f"{name} of one" if one else name] += 1
            return call(*args, **more)

        return counted


def _controller(journal: Journal, agent: Any, hub: Any) -> Controller:
    idle = IdlePolicy()
    return Controller(
        journal=journal,
        agent=agent,
        hub=hub,
        decide=Decider(Guards().denials, [idle]),
        window=lambda: Window(span=idle.idle_after, interval=10.0),
        clock=SystemClock(),
        settings=Settings(),
    )


async def _ask(controller: Controller, key: SessionKey) -> str:
    placement = Placement(
        key=key, incarnation=f"new-{key.user}", checkpoint=f"c-{key.user}"
    )
    return (await controller.plan_start(placement)).action


async def _restart(folder: Path, args: argparse.Namespace, *, lost: bool) -> None:
    agent = StillAgent(SystemClock())
    hub = StillHub(agent)
    journal = Journal(f"sqlite:///{folder}/{lost}.sqlite")
    for number in range(args.running):
        agent.running(SessionKey(f"on{number:05}"), journal)
    keys = [SessionKey(f"off{number:05}") for number in range(args.suspended)]
    for key in keys:
        agent.suspended(key, journal)
    journal.close()
    asked: Counter[str] = Counter()
    begun = time.monotonic()
    name = "empty" if lost else str(lost)
    journal = Journal(f"sqlite:///{folder}/{name}.sqlite")
    controller = _controller(journal, Counted(asked, agent), Counted(asked, hub))
    await controller.start()
    first = await _ask(controller, keys[0])
    print(f"\njournal {'lost' if lost else 'kept'}")
    _tell(f"the first start is answered: {first}", begun, asked)
    before, at = asked.copy(), time.monotonic()
    more = keys[1 : AT_ONCE + 1]
    answers = await asyncio.gather(*(_ask(controller, key) for key in more))
    _tell(f"{AT_ONCE} at once: {dict(Counter(answers))}", at, asked - before)
    runtimes = controller._sessions.runtimes  # noqa: SLF001 - no page tells it
    while not all(each.compared for each in runtimes.values()):
        if time.monotonic() - begun > args.limit:
            break
        await asyncio.sleep(0.05)
    known = sum(each.compared for each in runtimes.values())
    _tell(f"{known} sessions are known to be as they were", begun, asked)
    before, at = asked.copy(), time.monotonic()
    await asyncio.sleep(60.0)
    _tell("a minute later", at, asked - before)
    await controller.stop()
    journal.close()


def _tell(what: str, since: float, asked: Counter[str]) -> None:
    calls = ", ".join(f"{name} {count}" for name, count in sorted(asked.items()))
    print(f"{time.monotonic() - since:8.2f} s  {what}; {calls or 'nothing asked'}")


def main() -> None:
    """Restart twice, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suspended", type=int, default=1000)
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--limit", type=float, default=120.0)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        for lost in (False, True):
            asyncio.run(_restart(Path(folder), args, lost=lost))


if __name__ == "__main__":
    main()
