"""``drain`` and ``undrain``: free a node of sessions, and say what became of each.

The service does it, also when nobody waits here. A session that comes back elsewhere
meanwhile is no longer in the service's report, so what was seen of each is kept.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import (
    Bars,
    complain,
    print_json,
    print_table,
    say,
)
from jupyterhub_gpu_reclaim.cli.sessions import (
    DONE,
    FAILED,
    LATE,
    listing,
    selection,
)
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.common.drain import DrainedSession, DrainOrder
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import count

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.drain import DrainReport
    from jupyterhub_gpu_reclaim.common.models import SessionKey

#: Seconds between two looks.
PAUSE = 1.0
_GOES_ON = {"waiting", "saving"}


def drain(args: argparse.Namespace) -> int:
    views = ask(args, lambda client: client.sessions())
    there = [
        view
        for view in views
        if view.phase.live and (view.facts.node == args.node or not args.node)
    ]
    if there and not (args.yes or args.json):
        listing.table(there, time.time())
    what = f"drain {args.node or 'this machine'}, and suspend"
    if there and not selection.confirmed(args, what, len(there)):
        return FAILED
    order = DrainOrder(seconds=args.deadline, comes_back=args.resume)
    limit = args.time_limit
    if args.deadline is not None:
        limit = min(limit, args.deadline)
    found = ask(args, lambda client: _drained(client, args, order, limit))
    sessions = [found[key] for key in sorted(found)]
    if args.json:
        print_json(sessions)
    else:
        _print_outcomes(args.node, sessions)
    back = f"jupyterhub-gpu-reclaim undrain {args.node}".strip()
    complain(f"It stands drained until: {back}")
    states = {each.state for each in sessions}
    if not args.wait or not states & (_GOES_ON | {"refused"}):
        return DONE
    return LATE if states & _GOES_ON else FAILED


def undrain(args: argparse.Namespace) -> int:
    ask(args, lambda client: client.undrain(args.node))
    if args.json:
        print_json({"undrained": args.node})
    else:
        say(f"{args.node or 'This machine'} is no longer being drained.")
    return DONE


async def _drained(
    client: SessionsClient, args: argparse.Namespace, order: DrainOrder, limit: float
) -> dict[SessionKey, DrainedSession]:
    """Wait until all have ended or the time (s) is over; what became of each."""
    report = await client.drain(args.node, order)
    found = {each.key: each for each in report.sessions}
    until = time.monotonic() + limit
    with Bars() as shown:
        while args.wait and time.monotonic() < until:
            if not {each.state for each in found.values()} & _GOES_ON:
                break
            await asyncio.sleep(PAUSE)
            try:
                reports = await client.drains()
            except Unreachable:
                continue  # a restart of the service takes some seconds
            _follow(found, args.node, reports)
            done = sum(each.state == "saved" for each in found.values())
            shown.show(
                args.node or "this machine", "saved", done, len(found), in_bytes=False
            )
    return found


def _follow(
    found: dict[SessionKey, DrainedSession], node: str, reports: list[DrainReport]
) -> None:
    """Take over what is new in a report; Refused: somebody has taken the order back."""
    drain_report = next((each for each in reports if each.drain.node == node), None)
    if drain_report is None:
        what = f"The drain of {node or 'this machine'} was called off."
        raise Refused(Reason.INVALID, what=what)
    now = {each.key: each for each in drain_report.sessions}
    for key in found.keys() - now.keys():
        # not there any more: it came back elsewhere, or its user has ended it
        now[key] = DrainedSession(key=key, state="saved")
    found |= now


def _print_outcomes(node: str, sessions: list[DrainedSession]) -> None:
    if not sessions:
        say(f"No session runs on {node or 'this machine'}.")
        return
    rows = [
        (each.key, each.state, each.failure.message if each.failure else "")
        for each in sessions
    ]
    print_table(("SESSION", "STATE", "REASON"), rows)
    left = sum(each.state != "saved" for each in sessions)
    say(f"{count(len(sessions) - left, 'session')} saved, {left} left.")
    if left:
        complain("The drain stands: what is left is tried again until it is undrained.")
