"""A pass that verifies a store beside a service that deletes what has expired."""

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS


def save(store, checkpoint: str) -> None:
    key = SessionKey("ada")
    writer = store.begin(id=checkpoint, key=key, incarnation="i", generation=1)
    writer.add("pages", bytes(range(256)) * 1000)
    writer.commit()


class DeletesAtARead:
    """Another part deletes the checkpoint when that many objects have been read."""

    def __init__(self, backend, clock, reads: int) -> None:
        self._backend, self._left = backend, reads
        self._service = Repository(backend, clock=clock, keys=KEYS)

    def __getattr__(self, name: str):
        return getattr(self._backend, name)

    def read(self, name: str, *args):
        if name != "manifests/c1" or self._left == 0:
            self._left -= 1
            if self._left < 0:
                self._service.delete("c1")
        return self._backend.read(name, *args)


@pytest.mark.parametrize("reads", range(2))
def test_what_expires_while_it_is_verified_is_not_damaged(store, backend, clock, reads):
    save(store, "c1")
    looks = Repository(DeletesAtARead(backend, clock, reads), clock=clock, keys=KEYS)
    assert looks.verify("c1") == []
    assert not store.exists("c1")


def test_what_has_expired_since_the_list_was_made_is_not_damaged(store):
    save(store, "c1")
    ids = store.ids()
    store.delete("c1")
    assert [store.verify(id_) for id_ in ids] == [[]]
