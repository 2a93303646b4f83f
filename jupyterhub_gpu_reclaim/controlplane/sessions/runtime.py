"""Runtime state of sessions, in memory only: measured, judged, warned.

All of it is found out again after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey, Usage, Verdict


class Known:
    """Remembers.

    Args:
        clock: for how long ago something was.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._usage: dict[SessionKey, Usage] = {}
        self._verdicts: dict[SessionKey, list[Verdict]] = {}
        self._suspends_at: dict[SessionKey, float] = {}
        self._checked: dict[SessionKey, float] = {}
        #: sessions that agent, store and Hub show as the journal has them
        self.compared: set[SessionKey] = set()
        #: checkpoints deleted since the store was listed last
        self.deleted: dict[SessionKey, set[str]] = {}
        #: whether the store was listed by this program, so that the journal is known
        #: to be no older than it
        self.store_seen = False

    def measured(self, key: SessionKey, usage: Usage | None) -> None:
        """The newest sum of a session's samples."""
        if usage is None:
            self._usage.pop(key, None)
        else:
            self._usage[key] = usage

    def usage(self, key: SessionKey) -> Usage | None:
        """The newest sum of a session's samples."""
        return self._usage.get(key)

    def decided(self, key: SessionKey, verdicts: list[Verdict]) -> bool:
        """Keep the newest verdicts; returns whether the deciding one has changed."""
        before = self._verdicts.get(key)
        self._verdicts[key] = verdicts
        return _code(before) != _code(verdicts)

    def verdicts(self, key: SessionKey) -> list[Verdict]:
        """The newest verdicts, the deciding one first; empty when never judged."""
        return self._verdicts.get(key, [])

    def suspends_at(self, key: SessionKey) -> float | None:
        """When a warned session is going to be suspended."""
        return self._suspends_at.get(key)

    def warn(self, key: SessionKey, at: float) -> None:
        """Remember when the suspend is due; readers hear of it with the next touch."""
        self._suspends_at[key] = at

    def unwarn(self, key: SessionKey) -> None:
        """It is not due any more."""
        self._suspends_at.pop(key, None)

    def warned(self) -> list[SessionKey]:
        """Sessions for which a suspend is due."""
        return list(self._suspends_at)

    def checked_by_hub(self, key: SessionKey) -> None:
        """The Hub was restarted and is looking whether the server answers."""
        self._checked[key] = self.clock.monotonic()

    def was_checked(self, key: SessionKey, within: float) -> bool:
        """Whether that was so in the last seconds."""
        at = self._checked.get(key)
        return at is not None and self.clock.monotonic() - at <= within

    def forget(self, key: SessionKey) -> None:
        """Drop all of it."""
        for kept in (self._usage, self._verdicts, self._suspends_at, self._checked):
            kept.pop(key, None)
        self.compared.discard(key)


def _code(verdicts: list[Verdict] | None) -> str:
    return verdicts[0].code if verdicts else ""
