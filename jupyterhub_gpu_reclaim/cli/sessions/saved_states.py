"""``saved``: the checkpoints of a session."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import print_json, print_table
from jupyterhub_gpu_reclaim.cli.sessions import DONE
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.cli.sessions.selection import key_of
from jupyterhub_gpu_reclaim.common import text

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.common.models import KeptState

_STATES = ("ID", "NAME", "GENERATION", "SAVED", "SIZE", "NEW", "KEPT AS", "UNTIL")


def saved(args: argparse.Namespace) -> int:
    """List the checkpoints of one session."""
    key = key_of(args.target)
    states = ask(args, lambda client: client.saved(key))
    if args.json:
        print_json(states)
        return DONE
    print_table(
        _STATES, [_cells(state) for state in states], right="GENERATION SIZE NEW"
    )
    return DONE


def _cells(state: KeptState) -> tuple[object, ...]:
    until = "" if state.expires is None else _local_time(state.expires)
    size = text.size(state.logical_bytes)
    when = _local_time(state.created)
    new = text.size(state.stored_bytes)
    why = "save point" if state.save_point else state.keeping
    return (
        state.id,
        state.name,
        state.generation,
        when,
        size,
        new,
        why,
        until,
    )


def _local_time(at: float) -> str:
    """Write a time in the local time zone."""
    local_time = datetime.fromtimestamp(at, UTC).astimezone()
    return local_time.strftime("%Y-%m-%d %H:%M %Z")
