"""Object stores as a backend: S3 and compatible ones, GCS, Azure, through obstore.

No connection is opened before the first call. A process that has used it must not be
forked with it: obstore's runtime does not survive a fork, and every call of the child
hangs (tried); ``spec`` opens the same store in a process of its own.

Retries happen on two levels: obstore repeats single requests, with the login it has; a
call that fails all the same is :class:`~..backend.Unavailable` where it may be repeated
as a whole (``retry``), with a fresh login.
"""

from __future__ import annotations

import secrets
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError

from jupyterhub_gpu_reclaim.store.backend import (
    Entry,
    ObjectExists,
    ObjectMissing,
)
from jupyterhub_gpu_reclaim.store.backends.object_errors import PastTheEnd, answers
from jupyterhub_gpu_reclaim.store.backends.object_options import (
    ObjectOptions,
    make_store,
)
from jupyterhub_gpu_reclaim.store.backends.object_writer import ObjectUpload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from obstore.store import ObjectStore

    from jupyterhub_gpu_reclaim.store.backend import Spec

#: One request is repeated this often, for this long; far below five minutes, as long
#: as a signature is good for (obstore repeats without making a new one).
_RETRIES = {
    "max_retries": 6,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
#: Names of a publish that was repeated after its answer was lost.
_ATTEMPT = "attempt"


class ObjectsBackend:
    """Objects below a prefix of a bucket.

    Args:
        options: where it is, and with which login.
        patience: seconds for which one request is repeated.
    """

    def __init__(self, options: ObjectOptions, *, patience: float = 60.0) -> None:
        self._options = options
        self._patience = patience
        self._lock = threading.Lock()
        self._opened: ObjectStore | None = None
        #: Tells an object of ours from one that another process has published.
        self._mark = secrets.token_hex(8)

    def create(self, name: str) -> ObjectUpload:
        """Begin a new object; large ones go in parts, and stand when the last has."""
        try:
            self.length(name)
        except ObjectMissing:
            return ObjectUpload(self._store(), name)
        raise ObjectExists(name)

    def publish(self, name: str, data: bytes, *, needs: Sequence[Entry] = ()) -> None:
        """Put it in one request that the store refuses where one stands."""
        del needs  # there is one place only
        store = self._store()
        marked: Any = {_ATTEMPT: self._mark}
        try:
            with answers(name):
                obstore.put(store, name, data, mode="create", attributes=marked)
        except AlreadyExistsError:
            if not self._is_ours(name, data):
                raise ObjectExists(name) from None

    def replace(self, name: str, data: bytes) -> None:
        """Put it in one request."""
        self.length(name)
        with answers(name):
            obstore.put(self._store(), name, data, use_multipart=False)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``, in one request."""
        return bytes(self._range(name, offset, length))

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """The same into a buffer of the caller's, with one copy."""
        data = self._range(name, offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def length(self, name: str) -> int:
        """Bytes of that object."""
        store = self._store()
        try:
            with answers(name):
                return int(obstore.head(store, name)["size"])
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def list(self, prefix: str) -> list[Entry]:
        """All objects below that prefix, by name."""
        with answers(prefix):
            return sorted(self._walk(prefix))

    def delete(self, name: str) -> None:
        """Remove it; what is not there is fine."""
        store = self._store()
        try:
            with answers(name):
                obstore.delete(store, name)
        except FileNotFoundError:
            return

    def free_bytes(self) -> int | None:
        """No object store tells."""
        return None

    def spec(self) -> Spec:
        """Where it is; the login is read again from where it was read here."""
        return {
            "kind": "objects",
            **self._options.spec(),
            "patience": self._patience,
        }

    def __repr__(self) -> str:
        return f"ObjectsBackend({self._options.url!r})"

    def _walk(self, prefix: str) -> Iterator[Entry]:
        for page in obstore.list(self._store(), prefix.rstrip("/")):
            for each in page:
                yield Entry(each["path"], each["size"])

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

    def _is_ours(self, name: str, data: bytes) -> bool:
        """Whether the object that stands is what this process has just put there."""
        try:
            with answers(name):
                found = obstore.get(self._store(), name)
                marks: Any = found.attributes
                return (
                    marks.get(_ATTEMPT) == self._mark and bytes(found.bytes()) == data
                )
        except FileNotFoundError:
            return False

    def _store(self) -> ObjectStore:
        with self._lock:
            if self._opened is None:
                store = make_store(self._options, _RETRIES, self._patience)
                _look(store)
                self._opened = store  # only now: the next call looks again
            return self._opened


def _look(store: ObjectStore) -> None:
    """Ask once whether the bucket is there.

    A HEAD of an object of a bucket that is missing says the same as that of a missing
    object, and a checkpoint must never be called missing because of a typing mistake.
    """
    with answers("the bucket"):
        next(iter(obstore.list(store, chunk_size=1)), None)
