"""What operations are promised before they use any of it: no two count on the same.

A promise lives as long as its operation, however that ends; what is promised and not
yet used counts as gone for all others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.findings import finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.common.reasons import Reason
    from jupyterhub_gpu_reclaim.node.operations.operations import Operation

N = TypeVar("N")
T = TypeVar("T")


class Promises(Generic[N]):
    """Any thread may call."""

    reason: ClassVar[Reason]  #: that it is not there

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promises: dict[Operation, N] = {}

    def findings(self, need: N) -> Iterator[Finding]:
        """Find what is missing for a need now; promises nothing."""
        with self._lock:
            short = self._missing(need)
        if short:
            yield finding(self.reason, **short)

    def promise(self, operation: Operation, need: N) -> None:
        """Keep that much for the operation, until it ends or :meth:`release`.

        Raises:
            Refused: it is not there; nothing is kept.
        """
        with self._lock:
            self._promises.pop(operation, None)
            self._refuse(need)
            self._promises[operation] = need

    def grant(self, need: N, take: Callable[[], T]) -> T:
        """Have something taken that was not promised; nobody is promised it meanwhile.

        Raises:
            Refused: it is not there; nothing is taken.
        """
        with self._lock:
            self._refuse(need)
            return take()

    def release(self, operation: Operation) -> None:
        """Drop a promise: the operation uses it, or needs no more of it. Idempotent."""
        with self._lock:
            self._promises.pop(operation, None)

    def _refuse(self, need: N) -> None:
        if short := self._missing(need):
            raise Refused(self.reason, **short)

    def _missing(self, need: N) -> dict[str, Any]:
        self._promises = {op: one for op, one in self._promises.items() if not op.done}
        return self._short(need, list(self._promises.values()))

    def _short(self, need: N, others: Sequence[N]) -> dict[str, Any]:
        """The facts for the refusal; empty when it is there."""
        raise NotImplementedError
