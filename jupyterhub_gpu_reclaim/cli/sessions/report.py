"""``report``: prints a month's reclaimed use as CSV or JSON; the page has tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import print_json
from jupyterhub_gpu_reclaim.cli.sessions import DONE
from jupyterhub_gpu_reclaim.cli.sessions.connection import ask
from jupyterhub_gpu_reclaim.common.report import as_csv

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> int:
    """Print the report of a month."""
    found = ask(args, lambda client: client.report(args.month))
    if args.json:
        print_json(found)
    else:
        sys.stdout.write(as_csv(found))
    return DONE
