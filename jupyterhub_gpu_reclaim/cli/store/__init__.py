"""``jupyterhub-gpu-reclaim store``: maintain the store, on a node, as root.

Only the arguments are here; each action's imports are made when it runs, so that the
program starts quickly, and on a Hub without the agent's packages says what is missing.

The agent may go on working meanwhile: locks in the store, and the order of writing and
deleting, keep them apart. No store is created by mistake. Damage, or an action that
failed, is a sentence and exit code 1. Next: ``docs/how-to/store.md``.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import sentence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_OURS = "jupyterhub_gpu_reclaim"
#: Settings of the agent that say which store it is.
_SETTINGS = (
    *("config_file", "store_url", "store_options", "store_options_file"),
    *("master_key_file", "master_key_dir", "master_key_service"),
)
_EPILOG = """\
The store is the agent's, as its configuration file names it, unless
--AgentApp.store_url and a key are given. Exit code 0: done, 1: it failed or something
is damaged, 2: wrong usage.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "store", help="checkpoints: list, check, delete", epilog=_EPILOG
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add = partial(_add, actions)

    listing = add("ls", "listing", "list the checkpoints")
    listing.add_argument("--user", help="only this user's")

    show = add("show", "listing", "list the objects of one checkpoint")
    show.add_argument("id", metavar="ID")

    verify = add("verify", "maintenance", "read everything and name what is damaged")
    verify.add_argument("ids", metavar="ID", nargs="*", help="default: all")

    rekey = add("rekey", "maintenance", "wrap all keys under the newest master key")
    rekey.add_argument("ids", metavar="ID", nargs="*", help="default: all")

    remove = add("rm", "maintenance", "delete checkpoints")
    remove.add_argument("ids", metavar="ID", nargs="+")
    remove.add_argument(
        "--force",
        action="store_true",
        help="delete the newest of a session too, which may be all there is of it",
    )

    add("init", "maintenance", "begin the store, in an empty place")


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    module: str,
    text: str,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=sentence(text))
    parser.set_defaults(run=partial(_run, module, name))
    parser.add_argument("--json", action="store_true", help="print JSON, no table")
    group = parser.add_argument_group("which store, as the agent's own options say it")
    for setting in _SETTINGS:
        option = f"--AgentApp.{setting}"
        group.add_argument(
            option,
            dest="settings",
            metavar="VALUE",
            action="append",
            default=[],
            type=f"{option}={{}}".format,
        )
    return parser


def _run(module: str, action: str, args: argparse.Namespace) -> int:
    try:
        found = importlib.import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(_OURS):
            raise
        what = (
            f"This needs the Python package of {error.name}: pip install"
            ' "jupyterhub-gpu-reclaim[agent]", or do it where the agent runs.'
        )
        raise Refused(Reason.INVALID, what=what) from None
    run: Callable[[argparse.Namespace], int] = getattr(found, action)
    return run(args)
