"""``sessions``, ``why``, ``nodes`` and ``saved``: lists of states and reasons."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import (
    complain_of,
    local_time,
    print_json,
    print_table,
    say,
)
from jupyterhub_gpu_reclaim.cli.sessions import DONE, FAILED
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.cli.sessions.selection import chosen, key_of
from jupyterhub_gpu_reclaim.common import text as words
from jupyterhub_gpu_reclaim.common.models import Decision, Phase, SessionKey

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.cli.client import SessionsClient
    from jupyterhub_gpu_reclaim.common.models import KeptState, SessionView
    from jupyterhub_gpu_reclaim.common.node_status import NodeHealth

_COLUMNS = ("SESSION", "STATE", "FOR", "IDLE", "GPU", "VRAM", "NODE", "WHY")
_RIGHT = "FOR IDLE GPU VRAM"


def sessions(args: argparse.Namespace) -> int:
    now = time.time()
    views = chosen(args, ask(args, lambda client: client.sessions()), now)
    if args.json:
        print_json(views)
        return DONE
    table(views, now)
    running = sum(view.phase.live for view in views)
    suspended = sum(view.phase is Phase.SUSPENDED for view in views)
    listed = words.count(len(views), "session")
    say(f"{listed}, {running} running, {suspended} suspended")
    return DONE


def table(views: Sequence[SessionView], now: float) -> None:
    print_table(_COLUMNS, [_cells(view, now) for view in views], right=_RIGHT)


def why(args: argparse.Namespace) -> int:
    keys = [key_of(text) for text in args.targets]

    async def reasons(
        client: SessionsClient,
    ) -> list[tuple[SessionKey, list[Decision]]]:
        return [(key, await client.why(key)) for key in dict.fromkeys(keys)]

    found = ask(args, reasons)
    if args.json:
        print_json([{"key": key, "verdicts": verdicts} for key, verdicts in found])
        return DONE
    rows = [
        (
            key,
            "suspend" if decision.reclaim else "leave",
            decision.message,
            decision.code,
        )
        for key, verdicts in found
        for decision in verdicts
    ] + [
        (key, "", "It does not run now, so there is nothing to decide.", "")
        for key, verdicts in found
        if not verdicts
    ]
    print_table(("SESSION", "SAYS", "WHY", "CODE"), rows)
    return DONE


def nodes(args: argparse.Namespace) -> int:
    found = ask(args, lambda client: client.nodes())
    if args.json:
        print_json(found)
    else:
        rows = [
            (
                _name(each),
                words.count(len(each.faults), "fault") if each.faults else "ready",
                each.status.version if each.status is not None else "",
            )
            for each in found
        ]
        print_table(("NODE", "STATE", "AGENT"), rows)
        for each in found:
            for fault in each.faults:
                complain_of(_name(each), fault)
    return FAILED if any(each.faults for each in found) else DONE


def _name(node: NodeHealth) -> str:
    return node.node or "this machine"


def _cells(view: SessionView, now: float) -> tuple[object, ...]:
    usage = view.usage
    idle = busy = memory = ""
    if usage is not None:
        if usage.last_active is not None:
            idle = words.duration(now - usage.last_active)
        if usage.gpu_percent is not None:
            busy = f"{usage.gpu_percent:.0f} %"
        if usage.gpu_memory is not None:
            memory = words.size(usage.gpu_memory)
    gpu = f"{_cards(view)} {busy}".strip()
    since = words.duration(now - view.since) if view.since else ""
    node = view.facts.node
    return (view.key, view.phase.value, since, idle, gpu, memory, node, _why(view))


def _cards(view: SessionView) -> str:
    # ``H200``, ``2x H200``.
    models = Counter(gpu.model for gpu in view.gpus)
    shown = [
        f"{count}x {name}" if count > 1 else name for name, count in models.items()
    ]
    return ", ".join(shown)


def _why(view: SessionView) -> str:
    """The main reason: its place, the last failure, or the reason of its state."""
    if view.facts.place:
        return f"Waiting for a free GPU: number {view.facts.place} in the queue."
    if view.failure is not None:
        return view.failure.told
    if not view.phase.live:  # the last verdict is of the time before
        return suspension.why if (suspension := view.facts.suspension) else ""
    return view.verdict.message if view.verdict is not None else ""


_STATES = ("ID", "NAME", "GENERATION", "SAVED", "SIZE", "NEW", "KEPT AS", "UNTIL")


def saved(args: argparse.Namespace) -> int:
    key = key_of(args.target)
    states = ask(args, lambda client: client.session(key)).kept
    if args.json:
        print_json(states)
        return DONE
    print_table(
        _STATES, [_state_cells(state) for state in states], right="GENERATION SIZE NEW"
    )
    return DONE


def _state_cells(state: KeptState) -> tuple[object, ...]:
    until = "" if state.expires is None else local_time(state.expires)
    sizes = (words.size(state.logical_bytes), words.size(state.stored_bytes))
    why = "save point" if state.save_point else state.keeping
    named = (state.id, state.name, state.generation, local_time(state.created))
    return (*named, *sizes, why, until)
