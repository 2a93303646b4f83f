"""Orders: give one to each of the selected sessions, wait, and report."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import (
    Bars,
    complain,
    complain_of,
    local_time,
    print_json,
    print_table,
    say,
)
from jupyterhub_gpu_reclaim.cli.sessions import DONE, FAILED, LATE, listing, selection
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.cli.sessions.progress import Following, How, Result
from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.orders import Delete, Keep
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView
    from jupyterhub_gpu_reclaim.common.orders import Order

#: Requests at the same time.
AT_ONCE = 8


def order(args: argparse.Namespace, kind: type[Order]) -> int:
    if not args.targets and not selection.selects(args):
        what = f"Which sessions? Name them, or see {kind.kind} --help."
        raise BadRequest(Reason.INVALID, what=what)
    fields = {name: getattr(args, name) for name in kind.__struct_fields__}
    given = kind(**fields)
    views = _selected(args, given)
    if views and (selection.selects(args) or given.always_asks):
        if not (args.yes or args.json):
            listing.table(views, time.time())
        if not selection.confirmed(args, given.asks, len(views)):
            return FAILED
        # a user may have come back while the person was thinking
        asked = {view.key for view in views}
        views = [view for view in _selected(args, given) if view.key in asked]
    results = ask(args, lambda client: _order_all(args, given, client, views))
    return _report(args, results)


def _selected(args: argparse.Namespace, given: Order) -> list[SessionView]:
    views = ask(args, lambda client: client.sessions())
    views = selection.chosen(args, views, time.time())
    if args.targets:
        return views
    return [view for view in views if view.phase in given.phases]


async def _order_all(
    args: argparse.Namespace,
    given: Order,
    client: SessionsClient,
    views: list[SessionView],
) -> list[Result]:
    """Ask for each session, then wait for all; the results in the sessions' order."""
    waits = bool(given.follows) and args.wait
    with Bars() as shown:
        following = Following(given, tell=shown.show, ended=shown.end)
        turns = asyncio.Semaphore(AT_ONCE)
        found: dict[SessionKey, Result] = {}

        async def give(view: SessionView) -> None:
            async with turns:
                try:
                    asked = await client.order(view.key, given)
                except Unreachable:
                    raise
                except ReclaimError as error:
                    failure = codec.failure_of(error)
                    found[view.key] = Result(
                        key=view.key, how=How.REFUSED, failure=failure
                    )
                    return
            if waits:
                following.add(view, asked)
            else:
                how = How.ASKED if given.begins else How.DONE
                until = asked.kept_until if isinstance(given, Keep) else None
                kept = tuple(asked.kept) if isinstance(given, Delete) else ()
                found[view.key] = Result(
                    key=view.key, how=how, kept_until=until, kept=kept
                )

        await asyncio.gather(*map(give, views))
        if waits:
            await following.all(client, args.time_limit)
        found |= following.results
    return [found[view.key] for view in views]


def _report(args: argparse.Namespace, results: list[Result]) -> int:
    if args.json:
        print_json(results)
    elif results:
        _table(results)
    else:
        say("No session fits.")
    for result in results:
        for left in result.kept:
            complain(f"{result.key}: {left.checkpoint} is still there. {left.why}")
        if result.failure is not None:
            complain_of(result.key, result.failure)
    hows = {result.how for result in results}
    if hows & {How.FAILED, How.REFUSED}:
        return FAILED
    return LATE if How.WAITING in hows else DONE


def _table(results: list[Result]) -> None:
    columns = ("SESSION", "RESULT", "TIME", "STORED", "KEPT UNTIL")
    rows = [_cells(result) for result in results]
    shown = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    print_table(
        [columns[index] for index in shown],
        [[row[index] for index in shown] for row in rows],
        right="TIME STORED",
    )


def _cells(result: Result) -> tuple[str, ...]:
    took = f"{result.seconds:.1f} s" if result.seconds else ""
    stored = "" if result.stored_bytes is None else text.size(result.stored_bytes)
    until = "" if result.kept_until is None else local_time(result.kept_until)
    return (str(result.key), result.how.value, took, stored, until)
