"""Finds the service and a token, and runs one action with a client of it.

A token is read from a file or the environment, never from the command line, which every
user of the machine can read.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from jupyterhub_gpu_reclaim.cli.client import SessionsClient
from jupyterhub_gpu_reclaim.cli.output import complain
from jupyterhub_gpu_reclaim.cli.sessions import DEFAULT_URL
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_MAX_TOKEN_BYTES = 4096


def ask(
    args: argparse.Namespace, action: Callable[[SessionsClient], Awaitable[T]]
) -> T:
    """Run an action with a client; ReclaimError: no token, no service, or a refusal."""

    async def with_client() -> T:
        url = args.url or os.environ.get("GPU_RECLAIM_URL") or DEFAULT_URL
        try:
            client = SessionsClient(url, _token(args), ca_file=args.ca_file)
        except OSError as error:  # the certificates
            _refuse(f"{args.ca_file} cannot be used: {_reason(error)}.")
        try:
            return await action(client)
        finally:
            client.close()

    return asyncio.run(with_client())


def _token(args: argparse.Namespace) -> str:
    if not args.token_file:
        token = os.environ.get("JUPYTERHUB_API_TOKEN", "").strip()
        if not token:
            _refuse(
                "No token: make one on the Hub's Token page, and give it with"
                " --token-file or in JUPYTERHUB_API_TOKEN."
            )
    else:
        token = _read(Path(args.token_file))
    if not (token.isascii() and token.isprintable() and " " not in token):
        _refuse("That is not a token.")
    return token


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                complain(f"Note: {path} can be read by others; chmod 600 it.")
            token = file.readline(_MAX_TOKEN_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        _refuse(f"{path} cannot be read: {_reason(error)}.")
    if not token:
        _refuse(f"There is no token on the first line of {path}.")
    return token


def _reason(error: OSError) -> str:
    return (error.strerror or "it is not what it should be").lower()


def _refuse(what: str) -> NoReturn:
    raise BadRequest(Reason.INVALID, what=what)
