"""``suspend``, ``resume``, ``nap``, ``keep`` and the like: ask, wait, and report.

A refusal or failure for one session does not affect the others; the exit code says
whether all went well.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import (
    bars,
    complain,
    print_json,
    print_table,
    say,
)
from jupyterhub_gpu_reclaim.cli.sessions import DONE, FAILED, LATE, listing, selection
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.cli.sessions.progress import Following, How, Result
from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView

    Call = Callable[[SessionView], Awaitable[SessionView]]

#: Requests at the same time.
AT_ONCE = 8
_LIVE = tuple(phase for phase in Phase if phase.live)
#: Phases in which an action makes sense, if the sessions are not named.
_FROM = {
    "suspend": _LIVE,
    "resume": (Phase.SUSPENDED,),
    "save": _LIVE,
    "nap": (Phase.RUNNING,),
    "wake": (Phase.NAPPING,),
    "renew-login": (Phase.SUSPENDED,),
    "keep": (*_LIVE, Phase.SUSPENDING),
    "revoke-tabs": (*_LIVE, Phase.SUSPENDING, Phase.SUSPENDED),
}
_WORDS = {
    "nap": "move the GPU memory out of",
    "keep": "leave alone",
    "renew-login": "renew the logins of",
    "revoke-tabs": "revoke the keys of open tabs of",
}
#: Actions that are done as soon as they are answered.
_AT_ONCE_DONE = {"keep", "renew-login", "revoke-tabs"}


def suspend(args: argparse.Namespace) -> int:
    """Suspend sessions."""
    return _act(args, "suspend", lambda client: lambda view: client.suspend(view.key))


def resume(args: argparse.Namespace) -> int:
    """Resume suspended sessions; with their files, where that is the question."""

    def call(client: SessionsClient) -> Call:
        def order(view: SessionView) -> Awaitable[SessionView]:
            asked = view.failure.code if view.failure is not None else ""
            if args.put_files_back and asked == Reason.FILES_NEWER.value:
                return client.put_files_back(view.key)
            return client.resume(view.key)

        return order

    return _act(args, "resume", call)


def save(args: argparse.Namespace) -> int:
    """Save sessions that go on."""

    def call(client: SessionsClient) -> Call:
        return lambda view: client.save(view.key, args.name)

    return _act(args, "save", call)


def nap(args: argparse.Namespace) -> int:
    """Move the GPU memory of sessions out."""
    return _act(args, "nap", lambda client: lambda view: client.nap(view.key))


def wake(args: argparse.Namespace) -> int:
    """Move the GPU memory of sessions back."""
    return _act(args, "wake", lambda client: lambda view: client.wake(view.key))


def renew_login(args: argparse.Namespace) -> int:
    """Let the next start make old logins valid again."""
    call = "renew-login"
    return _act(args, call, lambda client: lambda view: client.renew_login(view.key))


def revoke_tabs(args: argparse.Namespace) -> int:
    """Take their keys from open tabs of sessions."""
    call = "revoke-tabs"
    return _act(args, call, lambda client: lambda view: client.revoke_tabs(view.key))


def end_tree(args: argparse.Namespace) -> int:
    """End a tree of a session that the Hub does not know."""
    key, which = selection.key_of(args.target), args.incarnation
    if not selection.confirmed(args, f"end the programs {which} beside", 1):
        return FAILED
    ask(args, lambda client: client.end_tree(key, which))
    if args.json:
        print_json({"session": str(key), "ended": which})
    else:
        say(f"{key}: the programs {which} are ended")
    return DONE


def keep(args: argparse.Namespace) -> int:
    """Leave sessions alone for a while."""

    def call(client: SessionsClient) -> Call:
        return lambda view: client.keep(view.key, args.seconds)

    return _act(args, "keep", call)


def _act(
    args: argparse.Namespace, action: str, call: Callable[[SessionsClient], Call]
) -> int:
    if not args.targets and not selection.selects(args):
        what = f"Which sessions? Name them, or see {action} --help."
        raise BadRequest(Reason.INVALID, what=what)
    views = _selected(args, action)
    if views and selection.selects(args):
        if not (args.yes or args.json):
            listing.table(views, time.time())
        if not selection.confirmed(args, _WORDS.get(action, action), len(views)):
            return FAILED
        # a user may have come back while the person was thinking
        asked = {view.key for view in views}
        views = [view for view in _selected(args, action) if view.key in asked]
    results = ask(
        args, lambda client: _order_all(args, action, call(client), client, views)
    )
    return _report(args, results)


def _selected(args: argparse.Namespace, action: str) -> list[SessionView]:
    """Get the selected sessions, as they are now."""
    views = ask(args, lambda client: client.sessions())
    views = selection.chosen(args, views, time.time())
    return views if args.targets else selection.only_in(views, _FROM[action])


async def _order_all(
    args: argparse.Namespace,
    action: str,
    call: Call,
    client: SessionsClient,
    views: list[SessionView],
) -> list[Result]:
    """Ask for each session, then wait for all; the results in the sessions' order."""
    with bars() as shown:
        following = Following(action, tell=shown.show, ended=shown.end)
        turns = asyncio.Semaphore(AT_ONCE)
        found: dict[SessionKey, Result] = {}

        async def order(view: SessionView) -> None:
            async with turns:
                try:
                    asked = await call(view)
                except Unreachable:
                    raise
                except ReclaimError as error:
                    failure = codec.failure_of(error)
                    found[view.key] = Result(
                        key=view.key, how=How.REFUSED, failure=failure
                    )
                    return
            if action not in _AT_ONCE_DONE and args.wait:
                following.add(asked)
            else:
                how = How.DONE if action in _AT_ONCE_DONE else How.ASKED
                until = asked.kept_until if action == "keep" else None
                found[view.key] = Result(key=view.key, how=how, kept_until=until)

        await asyncio.gather(*map(order, views))
        if action not in _AT_ONCE_DONE and args.wait:
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
        if (failure := result.failure) is not None:
            complain(f"Error: {result.key}: {failure.message} ({failure.code})")
            if failure.hint:
                complain(f"  {failure.hint}")
    hows = {result.how for result in results}
    if hows & {How.FAILED, How.REFUSED}:
        return FAILED
    return LATE if How.WAITING in hows else DONE


def _table(results: list[Result]) -> None:
    """Print a line for each session, without empty columns."""
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
    until = ""
    if result.kept_until is not None:
        local_time = datetime.fromtimestamp(result.kept_until, UTC).astimezone()
        until = local_time.strftime("%Y-%m-%d %H:%M %Z")
    return (str(result.key), result.how.value, took, stored, until)
