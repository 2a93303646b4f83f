"""Tab tokens: a session's own server vouches that an open tab may speak for it.

A page of JupyterLab asks the session's own server for a token
(``lab/server_extension.py``) and shows it to the service with each call. So a token is
worth as much as access to that server. Nothing that a browser says of a page proves as
much: on a Hub without subdomains the pages of all users have one origin.

The server makes it with its session's key, which the spawner puts into the server's
environment at its fresh start and the service can derive again: neither stores it. It
counts for the session of that start alone (``controlplane/tab_keys.py``).
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
    since: float  #: when its key was made, at a fresh start; whole seconds


def session_key(secret: bytes, key: SessionKey, now: float) -> str:
    """The key that a user's server gets at a start at the time ``now``."""
    since = str(math.ceil(now))
    return f"{since}.{_mac(secret, 'session', since, key.path)}.{key.path}"


def made_at(environment: Mapping[str, str]) -> float:
    """When the key in a session's environment was made; 0: there is none."""
    since = environment.get(VARIABLE, "").partition(".")[0]
    return float(since) if _is_number(since) else 0.0


def made(environment: Mapping[str, str], now: float) -> str:
    """A token, made inside the session; empty if that was started without a key."""
    since, _, rest = environment.get(VARIABLE, "").partition(".")
    secret, _, path = rest.partition(".")
    if not path:
        return ""
    at = str(int(now))
    return f"{since}.{at}.{_mac(secret.encode(), 'pass', at)}.{path}"


def read(secret: bytes, text: str, now: float) -> Pass | None:
    """The contents of a token; None if it is invalid or has expired."""
    since, at, mac, path = (*text.split(".", 3), "", "", "")[:4]
    if not (_is_number(since) and _is_number(at) and path.isascii()):
        return None
    key = _mac(secret, "session", since, path).encode()
    good = hmac.compare_digest(_mac(key, "pass", at).encode(), mac.encode())
    user, slash, server = path.partition("/")
    if not (good and slash and now - SECONDS < int(at) < now + AHEAD):
        return None
    return Pass(SessionKey.of_path(unquote(user), unquote(server)), float(since))


def _mac(secret: bytes, *words: str) -> str:
    text = "\0".join(("gpu-reclaim", *words))
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
