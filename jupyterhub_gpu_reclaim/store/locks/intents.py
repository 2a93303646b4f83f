"""Intents: which checkpoints are being written now, and whose packs they reference.

They make a sweep or a delete of another process (another node's agent, the command
line) leave alone what is about to be needed. They are advice and not authenticated:
what is read is bounded and checked, no more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from jupyterhub_gpu_reclaim.store.backend import ObjectMissing
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Backend

log = logging.getLogger(__name__)

#: An intent that is older is of a writer that died.
FRESH_SECONDS = 24 * 3600.0
_HEAD = "GRWRITE 1"
_MAX_BYTES = 1 << 20


class Intent(NamedTuple):
    """One checkpoint that is being written."""

    checkpoint: str
    begun: float
    leans_on: frozenset[str]  #: checkpoints whose packs it may reference

    @property
    def is_copy(self) -> bool:
        """Whether it is committed in another store, and on its way into this one."""
        return self.checkpoint in self.leans_on

    def is_fresh(self, now: float) -> bool:
        """Whether it counts; one from the future does: some machine's clock is off."""
        return self.begun > now - FRESH_SECONDS


def publish(backend: Backend, intent: Intent) -> None:
    """Publish the intent durably.

    Raises:
        StoreError: it exists already, or the store does not work.
    """
    backend.publish(layout.intent(intent.checkpoint), encode(intent))


def encode(intent: Intent) -> bytes:
    """What stands in its object."""
    lines = [_HEAD, str(int(intent.begun)), *sorted(intent.leans_on), ""]
    return "\n".join(lines).encode()


def fresh(backend: Backend, now: float) -> list[Intent]:
    """All intents that count.

    Raises:
        StoreError: the store does not work.
    """
    found = (read(backend, entry.name) for entry in backend.list(layout.INTENTS))
    return [one for one in found if one and one.is_fresh(now)]


def leaned_on(backend: Backend) -> set[str]:
    """Checkpoints whose packs are needed by a writer, running or dead.

    Raises:
        StoreError: the store does not work.
    """
    found = (read(backend, entry.name) for entry in backend.list(layout.INTENTS))
    return {owner for one in found if one for owner in one.leans_on}


def read(backend: Backend, name: str) -> Intent | None:
    """The intent in an object; None when it is gone, or no intent.

    Raises:
        StoreError: the store does not work.
    """
    checkpoint = layout.id_of(name)
    if checkpoint is None:
        return None
    try:
        data = backend.read(name, 0, _MAX_BYTES)
    except ObjectMissing:
        return None  # committed or given up in between
    try:
        head, begun, *leans_on = data.decode("ascii").splitlines()
        intent = Intent(checkpoint, float(int(begun)), frozenset(leans_on))
    except (ValueError, OverflowError):
        head = ""
    if head != _HEAD:
        log.warning("- %s is no intent of ours", name)
        return None
    return intent
