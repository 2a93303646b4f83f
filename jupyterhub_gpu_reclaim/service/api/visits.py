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

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.common.clock import Clock

#: Seconds for which a proof is good after the last page that was made with it.
PROOF_SECONDS = 86400.0
#: Logins that are remembered; the oldest one's pages have to be loaded again.
MOST_LOGINS = 20_000
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
    """Proofs in pages, and the logins that the pages were opened with.

    The same login has the same proof, also after a restart of the service; then it is
    known again as soon as one page has been opened.
    """

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret = hmac.digest(secret, b"gpu-reclaim page", "sha256")
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[Login, float]] = OrderedDict()

    def proof(self, login: Login) -> str:
        """The proof for a page that is opened with that login."""
        text = f"{login.token}\0{login.session_id}".encode()
        proof = hmac.new(self._secret, text, "sha256").hexdigest()
        name = _name(proof)
        self._known[name] = (login, self._clock.monotonic() + PROOF_SECONDS)
        self._known.move_to_end(name)
        while len(self._known) > MOST_LOGINS:
            self._known.popitem(last=False)
        return proof

    def login(self, proof: str) -> Login | None:
        """The login behind a proof; None if it is invalid or has expired."""
        login, until = self._known.get(_name(proof), (None, 0.0))
        return login if self._clock.monotonic() < until else None


def _name(proof: str) -> bytes:
    """A digest that is compared instead of the proof, against timing attacks."""
    return hashlib.sha256(proof.encode("utf-8", "replace")).digest()


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
