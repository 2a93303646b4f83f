"""``jupyterhub-gpu-reclaim agents``: the agents of a cluster.

``agents check`` asks each of them for its status; ``helm test`` runs it. It uses the
service's way, token and certificate, and checks that a wrong token is refused.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli import agent_secrets
from jupyterhub_gpu_reclaim.cli.output import say, say_findings
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from jupyterhub_gpu_reclaim.common.http.client import Connection
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import count, sentence
from jupyterhub_gpu_reclaim.service.clients.agent import AgentClient
from jupyterhub_gpu_reclaim.service.settings.placement import AGENT_NAME

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.common.node_status import NodeStatus

#: Seconds for one answer.
LIMIT = 15.0


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("agents", help="the agents of a cluster's nodes")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    text = "say whether each agent can save sessions and refuses strangers"
    check = actions.add_parser("check", help=text, description=sentence(text))
    check.add_argument(
        "--at",
        required=True,
        metavar="HOST",
        help="a name with the addresses of all agents, or the address of one",
    )
    check.add_argument(
        "--port", type=_port, default=8099, help="of all agents (default: %(default)s)"
    )
    check.add_argument(
        "--token-file", required=True, type=Path, metavar="FILE", help="their token"
    )
    check.add_argument(
        "--ca-file",
        required=True,
        type=Path,
        metavar="FILE",
        help="the authority of their certificate",
    )
    check.set_defaults(run=_check)
    text = (
        "print the Secrets that agents and Hub share, made new, for kubectl apply -f -"
    )
    made = actions.add_parser("secrets", help=text, description=sentence(text))
    agent_secrets.add_arguments(made)
    made.set_defaults(run=agent_secrets.run)


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise ValueError(text)
    return port


def _check(args: argparse.Namespace) -> int:
    for file in (args.ca_file, args.token_file):
        if not file.is_file():
            what = f"There is no file {file}."
            raise Refused(Reason.SETTING_INVALID, what=what)
    try:
        ssl.create_default_context(cafile=str(args.ca_file))
    except OSError:
        what = f"There is no certificate in {args.ca_file}."
        raise Refused(Reason.SETTING_INVALID, what=what) from None
    addresses = _addresses(args.at, args.port)
    fine = [asyncio.run(_check_agent(args, address)) for address in addresses]
    return 0 if all(fine) else 1


def _addresses(host: str, port: int) -> list[str]:
    """All addresses of a name; Unreachable: it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # that of a name with an empty label
        raise Unreachable(Reason.NO_AGENT, detail=f"{host}: {error}") from None
    return sorted({str(address[0]) for *_, address in found})


async def _check_agent(args: argparse.Namespace, ip: str) -> bool:
    """Print an agent's status; whether it can save sessions and refuses strangers."""
    address, vouched = f"https://{AGENT_NAME}:{args.port}", str(args.ca_file)
    ours = AgentClient(address, args.token_file, ca_file=vouched, at=ip, quick=LIMIT)
    wrong = {"Authorization": f"Bearer {secrets.token_hex()}"}
    stranger = Connection(
        address, lambda: wrong, Reason.AGENT_UNREACHABLE, ca_file=vouched, at=ip
    )
    try:
        status = await ours.status()
        answer = await stranger.ask("GET", "/v1/sessions", limit=LIMIT)
    except ReclaimError as error:
        say(f"{ip}: {error}")
        return False
    finally:
        ours.close()
        stranger.close()
    say(f"{ip}: {_describe(status)}")
    say_findings(status.findings, "  ")
    refuses = answer.status == 401
    if not refuses:
        say(f"  Error: it answers {answer.status}, not 401, to a wrong token.")
    return status.ready and refuses


def _describe(status: NodeStatus) -> str:
    cards = "GPUs do not answer"
    if status.cards is not None:
        cards = count(len(status.cards), "GPU")
    parts = [
        f"agent {status.version} on {status.host}",
        f"CRIU {status.criu}" if status.criu else "no CRIU that works",
        f"driver {status.driver}, {cards}" if status.driver else "no GPU driver",
    ]
    able = "can save sessions" if status.ready else "cannot save sessions"
    return f"{able}: {', '.join(parts)}"
