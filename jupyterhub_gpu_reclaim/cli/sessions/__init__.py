"""``jupyterhub-gpu-reclaim sessions | why | ORDER SELECTION``: steer a Hub.

Only the arguments are here, those of orders out of ``common/orders.py``; each action's
imports are made when it runs, so that the program starts quickly. ``connection`` finds
the service and a token, ``selection`` picks the sessions, ``listing``, ``actions``
and ``drains`` ask and print, and ``progress`` waits.

Everything goes through the service's API, and the token says which sessions may be
seen. A failure for one session does not affect the others.

Read next: ``actions``, then ``docs/reference/commands.md``.
"""

from __future__ import annotations

import argparse
import importlib
import re
import typing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.orders import KINDS, ORDERS, Order
from jupyterhub_gpu_reclaim.common.text import sentence

if TYPE_CHECKING:
    from collections.abc import Callable

#: Address at which ``configure(c)`` has the service listen by default.
DEFAULT_URL = "http://127.0.0.1:10101"
DONE, FAILED, WRONG, NO_SERVICE, LATE = range(5)  # exit codes
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_EPILOG = """\
The service is asked with a token of the Hub (a page of the Hub makes them: Token), from
--token-file or JUPYTERHUB_API_TOKEN. Administrators see all sessions, others their own.
Exit code 0: done, 1: it failed or was refused (the reason and its code are printed to
stderr), 2: wrong usage, 3: the service does not answer.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    add = partial(_add, commands)

    listing = add(
        "sessions", "listing", "list sessions, each with its state and reason"
    )
    _which(listing)

    why = add(
        "why", "listing", "list every reason why a session is or is not suspended"
    )
    why.add_argument("targets", metavar="USER[/SERVER]", nargs="+")

    for order in ORDERS:
        _register_order(add(order.kind, "actions", order.says), order)

    saved = add("saved", "listing", "list the checkpoints of a session")
    saved.add_argument("target", metavar="USER[/SERVER]")
    _register_for_nodes(add)


def _register_order(parser: argparse.ArgumentParser, order: type[Order]) -> None:
    live = any(phase.live for phase in order.phases)
    _which(parser, idle=live)
    parser.add_argument("--all", action="store_true", help="all that it is made for")
    for field in msgspec.structs.fields(order):
        _add_field(parser, field)
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation"
    )
    words = ["For administrators."] if order.for_managers else []
    words += [order.more] if order.more else []
    parser.epilog = " ".join([*words, _EPILOG])
    if order.follows:
        _waiting(parser)


def _add_field(
    parser: argparse.ArgumentParser, field: msgspec.structs.FieldInfo
) -> None:
    kind, *metas = typing.get_args(field.type)
    about = next(meta.description for meta in metas if meta.description)
    more: dict[str, Any] = {key: v for m in metas for key, v in (m.extra or {}).items()}
    option = more.get("option", f"--{field.name.replace('_', '-')}")
    if "default" in more:
        group = parser.add_mutually_exclusive_group()
        group.set_defaults(**{field.name: more["default"]})
        if kind is float:
            group.add_argument(
                option, dest=field.name, metavar="TIME", type=seconds, help=about
            )
        group.add_argument(
            "--off",
            dest=field.name,
            action="store_const",
            const=more["off"],
            help="take it back",
        )
    elif field.required:
        parser.add_argument(field.name, metavar=field.name.upper(), help=about)
    elif kind is bool:
        parser.add_argument(option, action="store_true", help=about)
    else:
        parser.add_argument(option, default=field.default, help=about)


def _register_for_nodes(add: Callable[..., argparse.ArgumentParser]) -> None:
    nodes = add("nodes", "listing", "list the nodes, and what is wrong with each")
    nodes.epilog = (
        "For administrators. What is wrong, and how it is mended, is printed to stderr."
        f" {_EPILOG}"
    )
    drain = add("drain", "drains", "suspend whatever runs on a node")
    undrain = add("undrain", "drains", "stop draining a node")
    for parser in (drain, undrain):
        parser.add_argument(
            "node",
            metavar="NODE",
            nargs="?",
            default="",
            help="its name (default: the Hub's own machine)",
        )
    drain.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    drain.add_argument(
        "--deadline",
        metavar="TIME",
        type=seconds,
        help="when the node may be gone, such as 30s or 10m: users are warned for a"
        " part of that, and idle sessions are not warned; then the waiting ends, too",
    )
    drain.add_argument(
        "--resume",
        action="store_true",
        help="start sessions at work again at once, on other nodes",
    )
    drain.epilog = (
        "For administrators. Idle and small sessions go first, those at work last; what"
        " cannot be suspended runs on, and is tried again until the node is undrained."
        " On a cluster, cordon the node first, so that nothing new is placed there; on"
        " the Hub's own machine nothing starts until it is undrained."
        f" {_EPILOG}"
    )
    _waiting(drain)
    undrain.epilog = f"For administrators. {_EPILOG}"


def seconds(text: str) -> float:
    """A time such as ``90``, ``90s``, ``30m``, ``4h`` or ``1d``."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*(s|m|min|h|d|)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: try 30m, 4h, 1d")
    return float(found[1]) * _UNITS[found[2]]


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    module: str,
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=sentence(text), epilog=_EPILOG
    )
    parser.set_defaults(run=partial(_run, module, name), if_bad=WRONG)
    parser.add_argument("--json", action="store_true", help="print JSON, no table")
    group = parser.add_argument_group("connection options")
    group.add_argument(
        "--url",
        help="the Hub's address, or the service's own (default: GPU_RECLAIM_URL, or"
        f" {DEFAULT_URL}, the service on this machine)",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        help="a token of the Hub, on the file's first line (default: what"
        " JUPYTERHUB_API_TOKEN says)",
    )
    group.add_argument(
        "--ca-file",
        metavar="FILE",
        default="",
        help="certificates that vouch for an https address (default: the system's)",
    )
    return parser


def _which(parser: argparse.ArgumentParser, *, idle: bool = True) -> None:
    parser.add_argument("targets", metavar="USER[/SERVER]", nargs="*")
    group = parser.add_argument_group("which sessions, instead of naming them")
    group.add_argument(
        "--user", action="append", help="only sessions of USER (repeatable)"
    )
    group.add_argument(
        "--node",
        action="append",
        help="only sessions on NODE, or suspended there (repeatable)",
    )
    group.add_argument(
        "--state",
        action="append",
        choices=[phase.value for phase in Phase],
        metavar="STATE",
        help=f"only sessions in STATE: {', '.join(Phase)} (repeatable)",
    )
    if idle:
        group.add_argument(
            "--idle-for",
            metavar="TIME",
            type=seconds,
            help="not used for so long, such as 30m or 2h, computing nothing, and kept"
            " by nobody; what is not known is never idle",
        )


def _waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until it is done, with a bar for each session (default), or only ask"
        " for it",
    )
    parser.add_argument(
        "--time-limit",
        metavar="TIME",
        type=seconds,
        default=1800.0,
        help="wait no longer than that (default: 30m); it goes on all the same",
    )
    parser.epilog = f"{parser.epilog}Exit code 4: not done within --time-limit."


def _run(module: str, action: str, args: argparse.Namespace) -> int:
    found = importlib.import_module(f"{__name__}.{module}")
    if action in KINDS:
        return int(found.order(args, KINDS[action]))
    run: Callable[[argparse.Namespace], int] = getattr(found, action.replace("-", "_"))
    return run(args)
