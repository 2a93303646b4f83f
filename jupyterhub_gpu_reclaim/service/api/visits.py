"""Counts only those cookies with which a browser opens one of our pages by itself.

On a Hub without subdomains every user's server has the origin of this service. A page
there may fetch our addresses with the visitor's cookies and read the answers, frame our
pages, or open them in a window. So a login cookie counts only for a page that the
browser opens at its top level, which no script can fake (``Sec-Fetch-*`` are the
browser's own headers). Such a page's forms and scripts then use a *proof*: a secret in
the page and in no cookie. No other page can read it: the ``sandbox`` policy gives our
page an origin of its own, so that a page around it, or one that has opened its window,
cannot look inside.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.fernet import Fernet, InvalidToken

from jupyterhub_gpu_reclaim.common import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.common.clock import Clock

#: Seconds for which a page's proof is good.
PROOF_SECONDS = 86400
#: Policy of our pages; without ``allow-same-origin``, which is the point of it.
SANDBOX = "sandbox allow-forms allow-scripts"

#: Header that a browser sends with a page that a service worker gets (W3C Service
#: Workers).
_PRELOAD = "Service-Worker-Navigation-Preload"


@dataclass(frozen=True)
class Login:
    token: str = field(repr=False)
    session_id: str = field(repr=False)


class PageLogins:
    """Proofs in pages: each is the login that its page was opened with, encrypted."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        key = hmac.digest(secret, b"gpu-reclaim page", "sha256")
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._clock = clock

    def proof(self, login: Login) -> str:
        """The proof for a page that is opened with that login."""
        data = codec.encode((login.token, login.session_id))
        return self._fernet.encrypt_at_time(data, int(self._clock.now())).decode()

    def login(self, proof: str) -> Login | None:
        """The login behind a proof; None if it is invalid or has expired."""
        now = int(self._clock.now())
        try:
            data = self._fernet.decrypt_at_time(proof.encode(), PROOF_SECONDS, now)
        except (InvalidToken, UnicodeEncodeError):
            return None
        return Login(*codec.decode(data, tuple[str, str]))


def is_told(headers: Mapping[str, str]) -> bool:
    """Whether the browser says what it asks for; over plain HTTP, no browser does."""
    return "Sec-Fetch-Mode" in headers or "Sec-Fetch-Dest" in headers


def is_visit(headers: Mapping[str, str]) -> bool:
    """Whether a browser opens a page in a tab: no frame, no script, no picture.

    Nor a service worker, which gets to read what the browser asks for while it wakes
    (navigation preload); what it asks for itself is no navigation to a document.
    """
    mode, into = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    return mode == "navigate" and into == "document" and _PRELOAD not in headers


def times_sent(headers: Mapping[str, str], name: str) -> int:
    """The number of cookies of a name that are sent, each set for another path."""
    pairs = headers.get("Cookie", "").split(";")
    return sum(pair.partition("=")[0].strip() == name for pair in pairs)
