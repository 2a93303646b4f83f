"""Deletion locks: they name the checkpoints whose packs are being removed.

A copy has to wait for them. A deletion publishes its lock and *then* looks at intents
and manifests; a copy publishes its intent and *then* looks for the lock: one of them
sees the other, whatever happens in between.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing, publish_over
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend

#: A mark that is older is of a process that died.
FRESH_SECONDS = 3600.0
_HEAD = "GRREMOVE 1"
_MAX_BYTES = 256


class Removal:
    """A mark that stands while a removal lasts; a context manager.

    One that stands already is taken over: of a process that died, or that ends then.

    Args:
        backend: where something is removed.
        owner: the checkpoint whose packs these are.
        clock: for the age of the mark.
    """

    def __init__(self, backend: Backend, owner: str, clock: Clock) -> None:
        self._backend = backend
        self._name = layout.removal(owner)
        self._clock = clock
        self._begun = clock.now()
        self._data = f"{_HEAD}\n{int(self._begun)}\n{secrets.token_hex(8)}\n".encode()

    def check(self) -> None:
        """See that the mark still stands; asked before everything that is removed.

        Raises:
            StoreError: it does not, or is too old; call again.
        """
        late = self._clock.now() > self._begun + FRESH_SECONDS / 2
        if late or not self._is_ours():
            why = "it took too long to remove what nobody needs; do it again"
            raise StoreError(Reason.STORE_FAILED, why=why)

    def __enter__(self) -> Self:
        publish_over(self._backend, self._name, self._data)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_ours():
            self._backend.delete(self._name)

    def _is_ours(self) -> bool:
        try:
            return self._backend.read(self._name, 0, _MAX_BYTES) == self._data
        except ObjectMissing:
            return False


def stands(backend: Backend, owner: str, now: float) -> bool:
    """Whether packs of that checkpoint are being removed.

    Raises:
        StoreError: that is not known.
    """
    try:
        data = backend.read(layout.removal(owner), 0, _MAX_BYTES)
        head, begun, _ = data.decode("ascii").splitlines()
        return head == _HEAD and float(int(begun)) > now - FRESH_SECONDS
    except (ObjectMissing, ValueError, OverflowError):
        return False
