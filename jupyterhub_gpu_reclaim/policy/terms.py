"""What rules match on, and what they set for one session. Plain values."""

from __future__ import annotations

import msgspec

from jupyterhub_gpu_reclaim.common.models import SessionKey, Value


class About(Value, frozen=True, kw_only=True):
    """What is known of a session's owner and start; ``None``: not known now."""

    key: SessionKey
    groups: list[str] | None = None  #: of the Hub, that its user is in
    #: options that it was started with, as text or lists of texts
    options: dict[str, list[str]] | None = None
    labels: dict[str, str] | None = None  #: of its pod; empty outside of Kubernetes


class Terms(Value, frozen=True, kw_only=True):
    """What holds for one session; ``None``: no rule sets it."""

    idle_after: float | None = None
    warn_for: float | None = None
    never: bool | None = None
    quiet_hours: list[str] | None = None
    min_age: float | None = None
    cool_down: float | None = None
    #: for each of these, the rule that says so
    by: dict[str, str] = msgspec.field(default_factory=dict)
    unknown: str = ""  #: facts that are missing for a decision

    def rule(self, setting: str) -> str:
        """The end of a sentence about that setting: which rule says so, if any."""
        return f" by the rule for {self.by[setting]}" if setting in self.by else ""
