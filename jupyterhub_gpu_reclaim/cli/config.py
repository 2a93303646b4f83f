"""``jupyterhub-gpu-reclaim config check FILE``: checks a Hub's configuration.

The file is read as the Hub reads it, which runs it, and ``configure(c)`` in it checks
its arguments; what is set below the call is checked as well. Nothing is started, and
nothing of ours is made on this machine.
"""

# ruff: noqa: PLC0415 - what reads a configuration is large; no other command needs it

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import plain, sentence

if TYPE_CHECKING:
    import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's."""
    text = "look for mistakes in a jupyterhub_config.py"
    config = commands.add_parser("config", help=text, description=sentence(text))
    actions = config.add_subparsers(required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="list the settings that the service would refuse",
        description="List the settings that the service would refuse.",
        epilog="The file is executed, as the Hub would. Exit code 0: all settings make"
        " sense; 1: problems are printed to stdout, one sentence a line.",
    )
    check.add_argument("file", metavar="FILE", help="a jupyterhub_config.py")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    problems = problems_of(Path(args.file))
    for each in problems:
        sys.stdout.write(plain(f"{args.file}: {each}") + "\n")
    if not problems:
        sys.stdout.write(plain(f"{args.file}: all settings make sense") + "\n")
    return 1 if problems else 0


def problems_of(file: Path) -> list[str]:
    """What is wrong with that configuration, in sentences.

    Raises:
        Refused: there is no such file.
    """
    from jupyterhub_gpu_reclaim.hub import config as hub_config
    from jupyterhub_gpu_reclaim.hub import config_check

    if not file.is_file():
        raise Refused(Reason.INVALID, what=f"There is no file {file}.")
    try:
        with hub_config.only_judging():
            c = _loaded(file.absolute())
    except Exception as error:  # noqa: BLE001 - any Python may stand in the file
        return [f"The Hub cannot read it: {type(error).__name__}: {error}"]
    found = hub_config.found_wrong(c)
    if found is None:
        return ["configure(c) is not called in it, so no session is ever suspended."]
    return [*found, *config_check.spawners(c)]


def _loaded(file: Path) -> Any:
    """The configuration that a Hub would have."""
    from jupyterhub.app import JupyterHub

    hub = JupyterHub()
    hub.raise_config_file_errors = True
    hub.load_config_file(str(file))
    return hub.config
