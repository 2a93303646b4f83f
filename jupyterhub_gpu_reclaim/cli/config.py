"""``jupyterhub-gpu-reclaim config check FILE``: checks a Hub's configuration.

JupyterHub's own loader runs the file, and ``configure(c)`` in it checks its arguments
(``hub/config_file.py``). Nothing is started, and nothing of ours is made here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import plain, sentence

if TYPE_CHECKING:
    import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "look for mistakes in a jupyterhub_config.py"
    config = commands.add_parser("config", help=text, description=sentence(text))
    actions = config.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="list the settings that the service would refuse",
        description="List the settings that the service would refuse.",
        epilog="The file is executed, as the Hub would, with whatever it does besides"
        " setting values, and for as long as that takes. What it prints goes to stderr."
        " Exit code 0: all settings make sense; 1: problems are printed to stdout, one"
        " a line.",
    )
    check.add_argument("file", metavar="FILE", help="a jupyterhub_config.py")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    file = Path(args.file)
    if not file.is_file():
        raise Refused(Reason.INVALID, what=f"There is no file {file}.")
    # It imports the whole Hub.
    from jupyterhub_gpu_reclaim.hub.config_file import problems_of  # noqa: PLC0415

    problems = problems_of(file)
    for each in problems or ["all settings make sense"]:
        sys.stdout.write(plain(f"{args.file}: {each}") + "\n")
    return 1 if problems else 0
