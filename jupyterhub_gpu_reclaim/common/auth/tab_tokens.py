"""Tab tokens: a session's own server vouches that an open tab may speak for it.

A page of JupyterLab asks the session's own server for a token
(``lab/server_extension.py``) and shows it to the service with each call. So a token is
worth as much as access to that server. Nothing that a browser says of a page proves as
much: on a Hub without subdomains the pages of all users have one origin.

The server makes it with its session's key, which the spawner puts into the server's
environment at its fresh start and the service can derive again: neither stores it. It
names the session of that start, and counts for that one alone.
"""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from jupyterhub_gpu_reclaim.common.models import SessionKey

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The header with the tab's token.
HEADER = "X-GPU-Reclaim-Tab"
#: The variable that holds the session's key in its server's environment.
VARIABLE = "GPU_RECLAIM_TAB_KEY"
#: Seconds for which a token is valid; the tab gets the next one by itself.
SECONDS = 43200.0
#: Seconds by which the clock of a node may be ahead of the service's.
AHEAD = 300.0


@dataclass(frozen=True)
class Pass:
    key: SessionKey
    session: str  #: its id
    since: float  #: when its key was made, at a fresh start; whole seconds


def session_key(secret: bytes, key: SessionKey, session: str, now: float) -> str:
    """The key that a session's server gets at its fresh start at the time ``now``."""
    start = f"{session}.{math.ceil(now)}"
    return f"{start}.{_mac(secret, 'session', start, key.path)}.{key.path}"


def made(environment: Mapping[str, str], now: float) -> str:
    """A token, made inside the session; empty if that was started without a key."""
    session, since, secret, path = _parts(environment.get(VARIABLE, ""), 4)
    if not path:
        return ""
    at = str(int(now))
    return f"{session}.{since}.{at}.{_mac(secret.encode(), 'pass', at)}.{path}"


def read(secret: bytes, text: str, now: float) -> Pass | None:
    """The contents of a token; None if it is invalid or has expired."""
    session, since, at, mac, path = _parts(text, 5)
    if not (_is_number(since) and _is_number(at) and path.isascii()):
        return None
    key = _mac(secret, "session", f"{session}.{since}", path).encode()
    good = hmac.compare_digest(_mac(key, "pass", at).encode(), mac.encode())
    user, slash, server = path.partition("/")
    if not (good and slash and now - SECONDS < int(at) < now + AHEAD):
        return None
    there = SessionKey.of_path(unquote(user), unquote(server))
    return Pass(there, session, float(since))


def _parts(text: str, number: int) -> list[str]:
    return [*text.split(".", number - 1), *[""] * number][:number]


def _mac(secret: bytes, *words: str) -> str:
    text = "\0".join(("gpu-reclaim", *words))
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
