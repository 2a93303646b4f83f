"""Whether the store is there (law 14); an agent's first look may begin it.

Looks are made one at a time and aside: an object store that does not answer keeps one
look waiting for minutes, and nobody who asks for the node's status.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend

#: Seconds that a look is waited for: a folder answers in less than one millisecond.
_WAIT: Final = 2.0


class StorePresence:
    """Looks at the store's identity, from any thread; ``begin`` goes before each."""

    # ``key_file``: None if the keys are elsewhere.

    def __init__(
        self,
        check: IdentifiedBackend,
        begin: Callable[[], object] = lambda: None,
        key_file: Path | None = None,
    ) -> None:
        self._check = check
        self._key_file = key_file
        self._begin = begin
        self._lock = threading.Lock()
        self._look: Future[list[Finding]] | None = None
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="store")

    def close(self) -> None:
        self._aside.shutdown(wait=False, cancel_futures=True)

    def findings(self) -> list[Finding]:
        """Find what is to be said of the store: nothing is saved while it is absent."""
        with self._lock:
            if self._look is None or self._look.done():
                self._look = self._aside.submit(self._confirm)
            look = self._look
        try:
            return look.result(_WAIT)
        except TimeoutError:
            why = f"it has not answered for {_WAIT:g} s"
            return [finding(Reason.STORE_UNREACHABLE, fatal=False, why=why)]

    def _confirm(self) -> list[Finding]:
        try:
            self._begin()
            self._check.confirm()
        except ReclaimError as error:
            # One that does not answer now is asked again by each order, and may have
            # then.
            fatal = error.reason is not Reason.STORE_UNREACHABLE
            return [finding(error.reason, fatal=fatal, **error.facts)]
        if self._key_file is None or self._key_file.exists():
            return []
        why = f"{self._key_file} is gone, and the agent remembers it until it ends"
        return [finding(Reason.KEY_MISSING, fatal=False, why=why)]
