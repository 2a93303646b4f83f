"""Locks in the store: write intents and deletion locks (``FORMAT.md``).

A write intent names a checkpoint that is being written, and those whose packs it
references, so that another process (another node's agent, the command line) does not
delete what is about to be needed. A deletion lock names the checkpoint whose packs are
being removed: another process that begins to remove them, or to write under that id
again, takes it over, and the first one stops.

Both are advice and not authenticated; reading is bounded and checked, no more. Every
function raises ``StoreError`` when the store does not work.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jupyterhub_gpu_reclaim.common import decoders
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing, publish_over
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend

log = logging.getLogger(__name__)

#: An intent that is older is of a writer that died; a lock, of a deletion that died.
INTENT_FRESH_SECONDS = 24 * 3600.0
DELETION_FRESH_SECONDS = 3600.0
_MAX_BYTES = 1 << 20
_T = TypeVar("_T")


class WriteIntent(msgspec.Struct, frozen=True):
    checkpoint: str
    begun: float
    references: frozenset[str]  #: checkpoints whose packs it may need

    def is_fresh(self, now: float) -> bool:
        # One from the future counts: some machine's clock is off.
        return self.begun > now - INTENT_FRESH_SECONDS


class _Deletion(msgspec.Struct, frozen=True):
    begun: float
    mark: str  #: tells it from others


def all_intents(backend: Backend) -> list[WriteIntent]:
    """All intents, of running writers and of dead ones."""
    names = [entry.name for entry in backend.list(layout.INTENTS)]
    found = (read_intent(backend, layout.id_of(name)) for name in names)
    return [intent for intent in found if intent]


def read_intent(backend: Backend, checkpoint: str | None) -> WriteIntent | None:
    """The intent of a checkpoint; None if it is gone or not an intent."""
    name = layout.intent(checkpoint or "")
    found = _read(backend, name, WriteIntent) if checkpoint else None
    return found if found and found.checkpoint == checkpoint else None


@contextlib.contextmanager
def deletion_lock(
    backend: Backend, owner: str, clock: Clock
) -> Iterator[Callable[[], None]]:
    """Hold the deletion lock; yields a check that is called before each removal."""
    # An existing lock is taken over: its process died, or stops then. The check
    # raises StoreError if the lock is not ours any more, or is too old: try again.
    name, begun = layout.deletion_lock(owner), clock.now()
    data = msgspec.json.encode(_Deletion(begun, secrets.token_hex(8)))

    def is_ours() -> bool:
        try:
            return backend.read(name, 0, _MAX_BYTES) == data
        except ObjectMissing:
            return False

    def check() -> None:
        if clock.now() > begun + DELETION_FRESH_SECONDS / 2 or not is_ours():
            why = "removing unneeded data took too long; do it again"
            raise StoreError(Reason.STORE_FAILED, why=why)

    publish_over(backend, name, data)
    try:
        yield check
    finally:
        if is_ours():
            backend.delete(name)


def is_being_deleted(backend: Backend, owner: str, now: float) -> bool:
    found = _read(backend, layout.deletion_lock(owner), _Deletion)
    return found is not None and found.begun > now - DELETION_FRESH_SECONDS


def _read(backend: Backend, name: str, kind: type[_T]) -> _T | None:
    try:
        return decoders.json_decoder(kind).decode(backend.read(name, 0, _MAX_BYTES))
    except ObjectMissing:
        return None  # committed or given up in between
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        log.warning("- %s is none of ours", name)
        return None
