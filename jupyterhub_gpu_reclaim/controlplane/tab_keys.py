"""Decides from which starts of a session the keys of open tabs still count.

A session's server has its key from its fresh start (``common/auth/tab_tokens.py``), and
keeps it through suspends and returns: its environment comes back as it was. Whoever has
read it there, such as a guest, keeps it, too. So a key counts for the session of that
one start, while that runs or is suspended, and until it is revoked.

A key's time tells the starts of one server apart. The spawner tells it with each fresh
start; what is suspended has it with it. Where a session was found that nobody had told
of, any key counts that is later than the last one known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind

if TYPE_CHECKING:
    from typing import Any

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Identity, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal


@dataclass(eq=False)
class TabKeys:
    journal: Journal
    clock: Clock

    def count(self, key: SessionKey, made: float) -> bool:
        """Whether a key from that time is of the session that is there now."""
        row = self.journal.session(key)
        if row is None or row.phase is Phase.STOPPED:
            return False
        if made <= self._time_of(NoteKind.NO_TAB_KEYS, key, 0.0):
            return False
        begun = self._time_of(NoteKind.TAB_KEY, key, made)
        return made == begun if begun >= 0 else made > -begun

    def begun(self, key: SessionKey, made: float) -> None:
        if made:
            self._note(NoteKind.TAB_KEY, key, made)
        else:
            self.found(key)

    def found(self, key: SessionKey) -> None:
        """Note a running session whose fresh start nobody has told."""
        last = self._time_of(NoteKind.TAB_KEY, key, 0.0)
        if last > 0:
            self._note(NoteKind.TAB_KEY, key, -last)

    def comes_back(self, key: SessionKey, identity: Identity) -> None:
        """Note a return: the key of its own fresh start counts, not a later one."""
        made = tab_tokens.made_at(identity.environment)
        if made and made != self._time_of(NoteKind.TAB_KEY, key, 0.0):
            self._note(NoteKind.TAB_KEY, key, made)

    def revoke(self, key: SessionKey) -> None:
        now = math.ceil(self.clock.now())
        self._note(
            NoteKind.NO_TAB_KEYS,
            key,
            max(now, self._time_of(NoteKind.TAB_KEY, key, 0.0)),
        )

    def _time_of(self, kind: NoteKind, key: SessionKey, default: float) -> float:
        noted = self.journal.noted(kind, key.path)
        return default if noted is None else noted

    def _note(self, kind: NoteKind, key: SessionKey, value: float) -> None:
        self.journal.note(kind, key.path, value)


def forgotten(key: SessionKey) -> list[Any]:
    kinds = (NoteKind.TAB_KEY, NoteKind.NO_TAB_KEYS)
    return [each for kind in kinds for each in schema.forget_notes(kind, key.path)]
