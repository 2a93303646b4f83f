"""The command ``jupyterhub-gpu-reclaim``, for administrators.

Each subcommand is a module with ``register(commands)``, which sets ``run``, a function
from the parsed arguments to an exit code. An error of ours is a sentence with its code
and exit code 1 (2: wrong usage, 3: a part of ours does not answer), never a traceback.
"""

from __future__ import annotations

import argparse
import sys

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.cli import agents, config, criu, sessions, store
from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import plain

COMMANDS = (sessions, config, criu, store, agents)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="jupyterhub-gpu-reclaim",
        description="Gives idle GPUs of a JupyterHub back and keeps every session.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(commands)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except ReclaimError as error:
        code = "" if error.reason is Reason.INVALID else f" ({error.reason.value})"
        sys.stderr.write(plain(f"Error: {error.message}{code}") + "\n")
        if error.reason.hint:
            sys.stderr.write(f"  {error.reason.hint}\n")
        if isinstance(error, BadRequest):
            return int(getattr(args, "if_bad", sessions.FAILED))
        return sessions.NO_SERVICE if isinstance(error, Unreachable) else 1
    except KeyboardInterrupt:
        return 130
