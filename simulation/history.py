"""What happened in one run, in plain sentences, with a hash of all of it."""

from __future__ import annotations

import hashlib


class History:
    """Sentences in the order in which things happened, with their times."""

    def __init__(self, clock: object) -> None:
        self._clock = clock
        self.lines: list[str] = []
        #: what must not have happened, in words; the first one counts
        self.violations: list[str] = []
        self._digest = hashlib.blake2b(digest_size=16)

    def say(self, text: str) -> None:
        line = f"{self._clock.time():9.3f} {text}"  # type: ignore[attr-defined]
        self.lines.append(line)
        self._digest.update(line.encode() + b"\n")

    def wrong(self, law: str, text: str) -> None:
        """Note that a law was broken; the run ends at the next step."""
        self.violations.append(f"{law}: {text}")
        self.say(f"WRONG ({law}): {text}")

    @property
    def digest(self) -> str:
        """The same for the same history, and for no other."""
        return self._digest.hexdigest()
