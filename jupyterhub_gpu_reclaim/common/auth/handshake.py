"""Handshake of spawner, service and agents: both prove a secret, neither sends it.

A program that takes over a part's address while that is away receives everything sent
there. So over plain HTTP a part proves itself first: its answers carry a proof, made
with the secret over a nonce from the caller. What the caller shows is valid for one run
of that part, and useless to any other program. Spawner and service share one secret,
service and agents another.

``GET hello`` → ``Hello``; then each call has the run's token (``Authorization``) and a
nonce, each answer a proof over nonce, status and body, each line of a stream its own.
"""

from __future__ import annotations

import hashlib
import hmac

from jupyterhub_gpu_reclaim.common.models import Value

#: Version of what is proved; both sides must have the same.
VERSION = 1
#: The header with the caller's nonce.
NONCE = "X-GPU-Reclaim-Nonce"
#: The header with the answer's proof.
PROOF = "X-GPU-Reclaim-Proof"


class Hello(Value, frozen=True, kw_only=True):
    """Identifies the run of the far part."""

    version: int = VERSION
    run: str


class Vouching:
    """One secret that two parts share.

    Args:
        secret: as both have it.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, run: str) -> str:
        """Token that the caller shows to a run of the far part."""
        return self._mac(b"token", run.encode())

    def proof(self, nonce: str, status: int, body: bytes) -> str:
        """The proof that an answer is the far part's."""
        words = (b"answer", nonce.encode(), str(status).encode())
        return self._mac(*words, hashlib.sha256(body).digest())

    def sealed(self, nonce: str, number: int, line: bytes) -> bytes:
        """A line of a stream, preceded by its proof."""
        words = (b"line", nonce.encode(), str(number).encode())
        return self._mac(*words, hashlib.sha256(line).digest()).encode() + b" " + line

    def opened(self, nonce: str, number: int, sealed: bytes) -> bytes | None:
        """The line; None if its proof is not the far part's."""
        line = sealed.partition(b" ")[2]
        good = hmac.compare_digest(self.sealed(nonce, number, line), sealed)
        return line if good else None

    def is_proved(self, given: str, nonce: str, status: int, body: bytes) -> bool:
        """Whether an answer's proof is the far part's."""
        wanted = self.proof(nonce, status, body).encode()
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted)

    def _mac(self, *words: bytes) -> str:
        mac = hmac.new(self._secret, b"gpu-reclaim vouching 1", "sha256")
        for word in words:
            mac.update(len(word).to_bytes(4, "big") + word)
        return mac.hexdigest()
