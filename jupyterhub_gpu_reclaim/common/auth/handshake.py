"""How spawner, service and agents know each other: none ever sends the secret.

Whoever takes a part's address while it is away hears everything that is sent there. So
a part that is asked over plain HTTP proves itself first: its answers carry a proof that
only somebody with the secret can make, over a nonce of the asker. And what the asker
shows is good for one run of that part alone: heard by another, it opens nothing any
more. Spawner and service share one secret, service and agents another.

``GET hello`` → ``Hello``; then each call has the run's token (``Authorization``) and a
nonce, each answer a proof over nonce, status and body, each line of a stream its own.
"""

from __future__ import annotations

import hashlib
import hmac

from jupyterhub_gpu_reclaim.common.models import Value

#: Of what is proved; the far part may be another one only where both are.
VERSION = 1
#: The header with the asker's random words.
NONCE = "X-GPU-Reclaim-Nonce"
#: The header with the answer's proof.
PROOF = "X-GPU-Reclaim-Proof"


class Hello(Value, frozen=True, kw_only=True):
    """Which run of the far part it is."""

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
        """What the asker shows to that run."""
        return self._mac(b"token", run.encode())

    def proof(self, nonce: str, status: int, body: bytes) -> str:
        """That an answer is the far part's."""
        words = (b"answer", nonce.encode(), str(status).encode())
        return self._mac(*words, hashlib.sha256(body).digest())

    def sealed(self, nonce: str, number: int, line: bytes) -> bytes:
        """A line of a stream, with its proof before it."""
        words = (b"line", nonce.encode(), str(number).encode())
        return self._mac(*words, hashlib.sha256(line).digest()).encode() + b" " + line

    def opened(self, nonce: str, number: int, sealed: bytes) -> bytes | None:
        """The line; None where the far part has not written it there."""
        line = sealed.partition(b" ")[2]
        good = hmac.compare_digest(self.sealed(nonce, number, line), sealed)
        return line if good else None

    def is_proved(self, given: str, nonce: str, status: int, body: bytes) -> bool:
        """Whether an answer is the far part's."""
        wanted = self.proof(nonce, status, body).encode()
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted)

    def _mac(self, *words: bytes) -> str:
        mac = hmac.new(self._secret, b"gpu-reclaim vouching 1", "sha256")
        for word in words:
            mac.update(len(word).to_bytes(4, "big") + word)
        return mac.hexdigest()
