"""``save-all``: save every running session, before something risky.

Orders are given in the order of a drain: what naps or is idle first, and of that the
small ones; the service carries out some at a time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.sessions.actions import order_all, report
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.cli.sessions.progress import How, Result
from jupyterhub_gpu_reclaim.cli.sessions.selection import is_idle
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.orders import Save, naps, save_point_of

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionView

#: Unused for so long, in seconds, is idle.
IDLE_SECONDS = 600.0
#: Phases in which a session has nothing to be saved.
_SAFE = {Phase.SUSPENDED, Phase.RESUMING, Phase.STOPPED}


def save_all(args: argparse.Namespace) -> int:
    order, now = Save(args.name.strip()), time.time()
    views = ask(args, lambda client: client.sessions())
    views = [view for view in views if view.phase not in _SAFE]
    known = [view for view in views if is_safe(view, order.name)]
    turns = sorted(
        (view for view in views if view.phase.live and view not in known),
        key=lambda view: rank(view, now),
    )
    leaving = [view for view in views if not view.phase.live]
    results = ask(
        args,
        lambda client: order_all(
            args, order, client, turns, followed=leaving, at_once=1
        ),
    )
    results += [Result(key=view.key, how=How.KNOWN) for view in known]
    return report(args, sorted(results, key=lambda result: result.key))


def is_safe(view: SessionView, name: str) -> bool:
    """Whether it is known to be unused since its save point of that name."""
    # Empty: any name will do.
    newest, usage = view.last_suspend, view.usage
    if newest is None or usage is None or save_point_of(view) is None:
        return False
    names = {kept.id: kept.name for kept in view.kept}
    if not view.phase.live or (name and name != names.get(newest.id)):
        return False
    # It was used while that was stored, perhaps: what counts is when that began.
    begun = newest.created - sum(step.seconds for step in newest.steps)
    return usage.at > begun and not usage.used_since(begun)


def rank(view: SessionView, now: float) -> tuple[bool, bool, float, SessionKey]:
    """Sort in use last; of the others those that nap first; the small ones first."""
    rests = naps(view)
    in_use = not rests and not is_idle(view, IDLE_SECONDS, now)
    return in_use, not rests, view.usage.held if view.usage else 0, view.key
