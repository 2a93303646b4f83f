"""Whether the store is there, and the service's word on which one it is (law 14).

Looks are made one at a time and aside: an object store that does not answer keeps one
look waiting for minutes, and nobody who asks for the node's status.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.node_status import StoreOrder, StoreStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.backends.identified import StoreAbsent

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.node.operations.known_store import KnownStore
    from jupyterhub_gpu_reclaim.store.backends.identified import IdentityCheck

#: Seconds that a look is waited for: a folder answers in less than one millisecond.
_WAIT: Final = 2.0


class StorePresence:
    """Looks at the store's identity; any thread may call.

    Args:
        known: what is remembered of it.
        check: of the store.
        make_key: makes a first master key, where one is to be made.
    """

    def __init__(
        self,
        known: KnownStore,
        check: IdentityCheck,
        make_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._known = known
        self._check = check
        self._make_key = make_key
        self._lock = threading.Lock()
        self._look: Future[ReclaimError | None] | None = None
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="store")

    @property
    def is_known(self) -> bool:
        """Whether a store was ever known here."""
        return bool(self._known.word().store)

    def close(self) -> None:
        """Begin no further look."""
        self._aside.shutdown(wait=False, cancel_futures=True)

    def status(self) -> StoreStatus:
        """How it is now."""
        error = self._error()
        word = self._known.word()
        told = StoreStatus(state="here", store=word.store, word=word.word)
        if error is None:
            return told
        state = "unknown"
        if isinstance(error, StoreAbsent):
            state = "absent" if word.store else "new"
        return msgspec.structs.replace(told, state=state, why=error.message)

    def findings(self) -> list[Finding]:
        """Find what is to be said of the store: nothing is saved while it is absent."""
        error = self._error()
        found = []
        # One that does not answer now is asked again by each order, and may have then.
        away = isinstance(error, Unavailable) and not isinstance(error, StoreAbsent)
        if error is not None and not away:
            found.append(finding(error.reason, **error.facts))
        if not self._known.is_kept:
            what = "The agent's state folder is not there any more. Is it mounted?"
            found.append(finding(Reason.STATE_UNUSABLE, what=what))
        return found

    def obey(self, order: StoreOrder) -> StoreStatus:
        """Take the service's word, and begin the store if that is ordered; it blocks.

        Idempotent. An older word than the one that holds changes nothing.

        Raises:
            StoreError: it cannot be remembered, or the place not be written.
        """
        if order.begin and not self._known.word().store:
            self._make_key()
            self._check.make(order.store)
            self._check.confirm()  # what stands there is taken, whoever made it
        else:
            self._known.obey(order.store, order.word)
        return self.status()

    def _error(self) -> ReclaimError | None:
        with self._lock:
            if self._look is None or self._look.done():
                self._look = self._aside.submit(self._confirm)
            look = self._look
        try:
            return look.result(_WAIT)
        except TimeoutError:
            why = f"it has not answered for {_WAIT:g} s"
            return Unavailable(why)

    def _confirm(self) -> ReclaimError | None:
        try:
            self._check.confirm()
        except ReclaimError as error:
            return error
        return None
