"""Object stores as a backend: S3 and compatible ones, GCS, Azure, through obstore.

A process that has used it must not fork: obstore's runtime does not survive that, and
every call of the child hangs (tried); ``spec`` opens the same store in another process.

obstore repeats single requests, with the login it has, for as long as that may be good;
a call that fails all the same is ``Unavailable`` where a later one may succeed.

Large objects are sent in parts while they are written. obstore's own writer cannot be
cancelled (closing publishes, dropping leaves the parts in the bucket), but its ``put``
of an iterator ends the upload when the iterator raises: a thread feeds one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import (
    Entry,
    ObjectExists,
    ObjectMissing,
    Unavailable,
)
from jupyterhub_gpu_reclaim.store.backends.object_errors import PastTheEnd, answers
from jupyterhub_gpu_reclaim.store.backends.object_options import make_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ObjectStore

    from jupyterhub_gpu_reclaim.store.backend import Buffer, Spec

#: One request is repeated until its time is up; that is far below five minutes, as long
#: as a signature is good for (obstore repeats without making a new one).
_RETRIES = {
    "max_retries": 30,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
#: S3 takes 10,000 parts of at least 5 MiB: objects of up to 48 GiB.
PART_BYTES = 5 * 1024 * 1024
_IN_FLIGHT = 2
_LOOK_SECONDS = 0.1
_END_SECONDS = 30.0


class ObjectsBackend:
    """Objects below a prefix; see ``address.spec_of``."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._opened: ObjectStore | None = None

    def create(self, name: str) -> ObjectUpload:
        try:
            self.length(name)
        except ObjectMissing:
            return ObjectUpload(self._store(), name)
        raise ObjectExists(name)

    def publish(self, name: str, data: bytes) -> None:
        # One request, which the store refuses if there is one already: maybe our own,
        # whose answer was lost. No two publish the same bytes under one name.
        store = self._store()
        try:
            with answers(name):
                obstore.put(store, name, data, mode="create")
        except AlreadyExistsError:
            with contextlib.suppress(ObjectMissing):
                if self.read(name, 0, len(data) + 1) == data:
                    return
            raise ObjectExists(name) from None

    def replace(self, name: str, data: bytes) -> None:
        self.length(name)
        with answers(name):
            obstore.put(self._store(), name, data, use_multipart=False)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._range(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        data = self._range(name, offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def length(self, name: str) -> int:
        store = self._store()
        try:
            with answers(name):
                return int(obstore.head(store, name)["size"])
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def list(self, prefix: str) -> list[Entry]:
        with answers(prefix):
            pages = obstore.list(self._store(), prefix.rstrip("/"))
            return sorted(Entry(e["path"], e["size"]) for page in pages for e in page)

    def delete(self, name: str) -> None:
        store = self._store()
        try:
            with answers(name):
                obstore.delete(store, name)
        except FileNotFoundError:
            return

    def free_bytes(self) -> int | None:
        # No object store tells.
        return None

    def spec(self) -> Spec:
        # The login is read again from where it was read here.
        return self._spec

    def __repr__(self) -> str:
        return f"ObjectsBackend({self._spec['url']!r})"

    def _range(self, name: str, offset: int, length: int) -> memoryview:
        if length <= 0 or offset >= 1 << 63:
            self.length(name)
            return memoryview(b"")
        try:
            with answers(name):
                found = obstore.get_range(
                    self._store(), name, start=offset, length=length
                )
        except FileNotFoundError:
            raise ObjectMissing(name) from None
        except PastTheEnd:
            return memoryview(b"")
        return memoryview(found)

    def _store(self) -> ObjectStore:
        with self._lock:
            if self._opened is None:
                store = make_store(self._spec, _RETRIES)
                # A HEAD of an object says the same of a missing bucket as of a missing
                # object, and a typing mistake must never make checkpoints look missing.
                with answers("the bucket"):
                    next(iter(obstore.list(store, chunk_size=1)), None)
                self._opened = store  # only now: the next call looks again
            return self._opened


class _Cancelled(Exception):
    """Raised inside the iterator, so that obstore ends the upload."""


class ObjectUpload:
    """Holds a few parts at most."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._part = bytearray()
        self._parts: queue.Queue[bytes | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._cancelled = threading.Event()

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            room = PART_BYTES - len(self._part)
            self._part += rest[:room]
            rest = rest[room:]
            if len(self._part) == PART_BYTES:
                self._hand_over(bytes(self._part))
                self._part.clear()

    def read_back(self, offset: int, buffer: memoryview) -> None:
        # Nothing can be read before it is finished.
        ...

    def finish(self) -> None:
        if self._thread is None:
            try:
                with answers(self._name):
                    data = bytes(self._part)
                    obstore.put(self._store, self._name, data, mode="create")
            except AlreadyExistsError:
                raise ObjectExists(self._name) from None
            return
        if self._part:
            self._hand_over(bytes(self._part))
        self._hand_over(None)
        self._thread.join()
        self._raise_failure()

    def abandon(self) -> None:
        self._cancelled.set()
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
        if self._cancelled.is_set():
            raise StoreError(Reason.CANCELLED)

    def _send(self) -> None:
        try:
            with answers(self._name):
                obstore.put(
                    self._store,
                    self._name,
                    self._handed_over(),
                    chunk_size=PART_BYTES,
                    max_concurrency=_IN_FLIGHT,
                )
        except _Cancelled:
            return
        except Unavailable as error:
            # Parts are lost with it: the same call again would not help.
            self._failure = StoreError(error.reason, detail=error.detail, **error.facts)
        except Exception as error:  # noqa: BLE001 - it is raised where it is written
            self._failure = error
        finally:
            self._ended.set()

    def _handed_over(self) -> Iterator[bytes]:
        while not self._cancelled.is_set():
            with contextlib.suppress(queue.Empty):
                part = self._parts.get(timeout=_LOOK_SECONDS)
                if part is None:
                    return
                yield part
        raise _Cancelled
