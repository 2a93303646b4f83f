"""Reads a passphrase: from a file, or from the person at the terminal.

Never from the command line, which every user of the machine can read.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: Place that means that the person is asked.
ASK = "-"
_MAX_BYTES = 4096


def read_passphrase(place: str, *, twice: bool = False) -> str:
    """Read a passphrase.

    Args:
        place: a file, whose first line it is; or ``-``.
        twice: whether the person types it twice, since nobody can restore it.

    Raises:
        BadRequest: the file cannot be read; nothing was typed; or the two are not the
            same.
    """
    if place == ASK:
        return _ask_for_passphrase(twice=twice)
    try:
        with Path(place).open("rb") as file:
            return file.readline(_MAX_BYTES).decode().rstrip("\r\n")
    except OSError as error:
        why = (error.strerror or "it is not what it should be").lower()
        raise _bad_request(f"{place} cannot be read: {why}.") from None
    except UnicodeDecodeError:
        raise _bad_request(f"{place} is no text.") from None


def _ask_for_passphrase(*, twice: bool) -> str:
    try:
        words = getpass.getpass("Passphrase: ")
        if twice and sys.stdin.isatty() and getpass.getpass("Once more: ") != words:
            raise _bad_request("The two are not the same.")
    except EOFError:
        raise _bad_request("No passphrase was given.") from None
    return words


def _bad_request(what: str) -> BadRequest:
    return BadRequest(Reason.INVALID, what=what)
