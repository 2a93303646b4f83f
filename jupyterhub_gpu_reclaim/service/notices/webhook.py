"""Sends each notice as a signed POST to a web address.

It retries nothing and follows no redirection. Its address may be a secret, so it is
never logged.

The body is the notice as JSON. With a secret, ``X-GPU-Reclaim-Signature`` is
``sha256=`` and the HMAC-SHA256 (hex) of ``X-GPU-Reclaim-Timestamp`` (seconds since the
epoch), a dot and the body: a receiver compares it in constant time and refuses old
timestamps.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.http.client import Connection, NoResponse
from jupyterhub_gpu_reclaim.service.notices.notice import NotSent

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.service.notices.notice import Notice

#: Statuses after which another try may help.
_AGAIN = {408, 425, 429}


class Webhook:
    """A receiver of POST requests.

    Args:
        url: ``http(s)://host/path``.
        secret: signs; empty: nothing is signed.
        limit: seconds for one request.
        clock: for the timestamp.
    """

    name = "webhook"

    def __init__(self, url: str, secret: bytes, limit: float, clock: Clock) -> None:
        parts = urlsplit(url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._http = Connection(f"{parts.scheme}://{parts.netloc}", dict)
        self._secret = secret
        self._limit = limit
        self._clock = clock

    async def send(self, notice: Notice) -> None:
        """Post the notice.

        Raises:
            NotSent: no answer, or one that does not accept it.
        """
        body = codec.encode(notice)
        headers = {"Content-Type": "application/json", **self._signature(body)}
        try:
            answer = await self._http.ask(
                "POST", self._path, limit=self._limit, body=body, headers=headers
            )
        except NoResponse as silent:
            why = str(silent).partition(": ")[2]
            raise NotSent(why, retryable=True) from None
        if not 200 <= answer.status < 300:
            again = answer.status >= 500 or answer.status in _AGAIN
            raise NotSent(f"status {answer.status}", retryable=again)

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def _signature(self, body: bytes) -> dict[str, str]:
        if not self._secret:
            return {}
        at = str(int(self._clock.now()))
        signed = hmac.new(self._secret, f"{at}.".encode() + body, hashlib.sha256)
        return {
            "X-GPU-Reclaim-Timestamp": at,
            "X-GPU-Reclaim-Signature": f"sha256={signed.hexdigest()}",
        }
