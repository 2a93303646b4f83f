"""Work for a thread of its own: with other rights, or in another namespace.

Linux keeps credentials, namespaces and the root folder of each thread apart. A thread
that has changed them is of no use for anything else, so it ends with the work.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.linux.libc import checked, libc

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: What is done in a namespace takes microseconds; a thread that takes longer has been
#: forgotten.
_SECONDS = 10.0


def in_thread(work: Callable[[], T], seconds: float | None = None) -> T:
    """What the work returns or raises; blocks.

    Raises:
        TimeoutError: (an OSError) the time was up; the thread is left behind.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            answer.set_exception(error)

    threading.Thread(target=run, name="own-thread", daemon=True).start()
    return answer.result(seconds)


def in_namespace(namespace: int, kind: int, work: Callable[[], T]) -> T:
    """The same in a namespace, by its descriptor and its flag (setns(2)).

    Raises:
        OSError: it may not be entered, or as :func:`in_thread`.
    """

    def enter() -> T:
        checked(libc.setns(namespace, kind), "setns")
        return work()

    return in_thread(enter, _SECONDS)
