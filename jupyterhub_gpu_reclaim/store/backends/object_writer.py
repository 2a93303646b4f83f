"""Uploads one object to an object store, in parts, with bounded memory.

A small object goes in one request; parts of a larger one are sent while it is written.
Nothing is visible before ``finish``.

obstore's own writer cannot be cancelled: closing it publishes what is there, dropping
it leaves the parts in the bucket. Its ``put`` of an iterator ends the upload when the
iterator raises (both tried against moto), so a thread per large object feeds one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectExists, Unavailable
from jupyterhub_gpu_reclaim.store.backends.object_errors import answers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ObjectStore

    from jupyterhub_gpu_reclaim.store.backend import Buffer

#: S3 takes 10,000 parts of at least 5 MiB: objects of up to 48 GiB.
PART_BYTES = 5 * 1024 * 1024
_IN_FLIGHT = 2
_LOOK_SECONDS = 0.1
_END_SECONDS = 30.0


class _CalledOff(Exception):
    """Raised inside the iterator, so that obstore ends the upload."""


class ObjectUpload:
    """See :class:`~.backend.ObjectWriter`.

    It holds the part that is being filled, one that waits, and those under way.
    """

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._part = bytearray()
        self._parts: queue.Queue[bytes | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._called_off = threading.Event()

    def write(self, data: Buffer) -> None:
        """Append all of it; waits while the network is slower than the caller."""
        rest = memoryview(data).cast("B")
        while rest:
            room = PART_BYTES - len(self._part)
            self._part += rest[:room]
            rest = rest[room:]
            if len(self._part) == PART_BYTES:
                self._hand_over(bytes(self._part))
                self._part.clear()

    def read_back(self, offset: int, buffer: memoryview) -> None:
        """An object store shows nothing before it is finished."""

    def finish(self) -> None:
        """Send the rest; the object stands, durable, when this returns."""
        if self._thread is None:
            self._put_whole(bytes(self._part))
            return
        if self._part:
            self._hand_over(bytes(self._part))
        self._hand_over(None)
        self._thread.join()
        self._raise_failure()

    def abandon(self) -> None:
        """Tell the store to forget the parts; a no-op after ``finish``."""
        self._called_off.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _hand_over(self, part: bytes | None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._send, name=f"upload {self._name}", daemon=True
            )
            self._thread.start()
        while True:
            self._raise_failure()
            if self._ended.is_set():
                raise StoreError(Reason.STORE_FAILED, why=f"{self._name} has ended")
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=_LOOK_SECONDS)
                return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._called_off.is_set():
            raise StoreError(Reason.CANCELLED)

    def _put_whole(self, data: bytes) -> None:
        try:
            with answers(self._name):
                obstore.put(self._store, self._name, data, mode="create")
        except AlreadyExistsError:
            raise ObjectExists(self._name) from None

    def _send(self) -> None:
        """The thread: one ``put`` that reads what ``write`` passes to it."""
        try:
            with answers(self._name):
                obstore.put(
                    self._store,
                    self._name,
                    self._handed_over(),
                    chunk_size=PART_BYTES,
                    max_concurrency=_IN_FLIGHT,
                )
        except _CalledOff:
            return
        except Unavailable as error:
            # Parts are lost with it: the same call again would not help.
            self._failure = StoreError(error.reason, detail=error.detail, **error.facts)
        except Exception as error:  # noqa: BLE001 - it is raised where it is written
            self._failure = error
        finally:
            self._ended.set()

    def _handed_over(self) -> Iterator[bytes]:
        while not self._called_off.is_set():
            with contextlib.suppress(queue.Empty):
                part = self._parts.get(timeout=_LOOK_SECONDS)
                if part is None:
                    return
                yield part
        raise _CalledOff
