"""``report``: the GPU time that was reclaimed in a month, as a table, CSV or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import print_json, print_table, say
from jupyterhub_gpu_reclaim.cli.sessions import DONE
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.report import as_csv

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.common.report import Report

_UNNAMED = {"group": "no group", "node": "this machine", "gpu": "not known"}


def report(args: argparse.Namespace) -> int:
    """Print the report of a month."""
    found = ask(args, lambda client: client.report(args.month))
    if args.json:
        print_json(found)
    elif args.csv:
        sys.stdout.write(as_csv(found))
    else:
        shares = {
            "user": found.users,
            "group": found.groups,
            "node": found.nodes,
            "gpu": found.gpus,
        }[args.by]
        rows = [
            (
                share.name or _UNNAMED.get(args.by, ""),
                f"{share.gpu_hours:.1f}",
                share.suspensions,
                _naps(share.nap_gb_hours),
            )
            for share in shares
        ]
        columns = (args.by.upper(), "GPU-HOURS", "SUSPENSIONS", "NAP-GBH")
        print_table(columns, rows, right="GPU-HOURS SUSPENSIONS NAP-GBH")
        times = text.count(found.suspensions, "suspension")
        say(f"{found.month}: {found.gpu_hours:.1f} GPU-hours reclaimed by {times}")
        say(_of_naps(found))
    return DONE


def _naps(gb_hours: float | None) -> str:
    return "-" if gb_hours is None else f"{gb_hours:.1f}"


def _of_naps(found: Report) -> str:
    if found.nap_gb_hours is None:
        return "Naps were not counted in this month."
    told = f"Naps moved {found.nap_gb_hours:.1f} GB-hours of GPU memory out"
    if found.naps_since is not None:
        told += f", counted since {text.moment(found.naps_since)}"
    return f"{told}."
