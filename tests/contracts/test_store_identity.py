"""A place that is not the store is used for nothing, on each kind of place (law 14)."""

from __future__ import annotations

import shutil

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.known_store import KnownStore
from jupyterhub_gpu_reclaim.store.backend import ObjectExists
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.identified import (
    IdentityCheck,
    StoreAbsent,
    identified,
)
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock

KEY = SessionKey("ada")
ID = "5" * 32


class FolderVolume:
    """A folder, on whose mount point a volume stands or not."""

    def __init__(self, tmp_path):
        self.root, self.aside = tmp_path / "store", tmp_path / "not mounted"
        self.place = FolderBackend(self.root)

    def unmount(self):
        self.root.rename(self.aside)
        self.root.mkdir(mode=0o700)

    def mount(self):
        shutil.rmtree(self.root)
        self.aside.rename(self.root)

    def below(self):
        """What was written while it was not mounted."""
        return [path for path in self.root.rglob("*") if path.is_file()]


class Bucket:
    """A bucket whose contents are gone for a while: an address that means another."""

    def __init__(self, s3, url):
        self.s3, self.name = s3, url.removeprefix("s3://").split("/")[0]
        given = {"options": s3.options, "options_file": str(s3.options_file)}
        self.place = open_backend(spec_of(url, patience=5.0, **given))
        self.aside = {}

    def _contents(self):
        found = self.s3.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return [each["Key"] for each in found]

    def unmount(self):
        for key in self._contents():
            body = self.s3.client.get_object(Bucket=self.name, Key=key)["Body"]
            self.aside[key] = body.read()
            self.s3.client.delete_object(Bucket=self.name, Key=key)

    def mount(self):
        for key, data in self.aside.items():
            self.s3.client.put_object(Bucket=self.name, Key=key, Body=data)

    below = _contents


@pytest.fixture(params=["folder", "s3"])
def volume(request, tmp_path):
    if request.param == "folder":
        return FolderVolume(tmp_path)
    s3 = request.getfixturevalue("s3")
    return Bucket(s3, request.getfixturevalue("spec_of_s3")["url"])


@pytest.fixture
def known(tmp_path):
    (tmp_path / "state").mkdir()
    return KnownStore(tmp_path / "state")


@pytest.fixture
def store(volume, known):
    """A store with an identity, and one checkpoint."""
    place = identified(volume.place, KEYS, known)
    place.check.make(ID)
    made = Repository(place, clock=ManualClock(), keys=KEYS)
    save(made, "one")
    return made


def save(store, checkpoint, *, before_commit=lambda: None):
    writer = store.begin(id=checkpoint, key=KEY, incarnation="i", generation=1)
    writer.add("pages", checkpoint.encode() * 10_000)
    before_commit()
    return writer.commit()


def test_nothing_is_believed_written_or_deleted_while_it_is_not_mounted(
    store, volume, known
):
    volume.unmount()
    for act in (
        lambda: save(store, "two"),
        lambda: store.open("one"),
        lambda: store.exists("one"),
        lambda: store.info("one"),
        store.list,
        store.ids,
        store.sweep,
        store.free_bytes,
        lambda: store.delete("one"),
    ):
        with pytest.raises(StoreAbsent, match="not mounted") as caught:
            act()
        assert caught.value.reason is Reason.STORE_ABSENT
    assert not volume.below()
    volume.mount()
    assert store.open("one").read("pages") == b"one" * 10_000
    save(store, "two")
    assert known.word().store == ID


def test_volume_that_goes_before_the_commit_ends_it(store, volume):
    with pytest.raises(StoreAbsent):
        save(store, "two", before_commit=volume.unmount)
    volume.mount()
    assert store.ids() == ["one"]


@pytest.mark.parametrize("act", ["exists", "ids"])
def test_volume_that_goes_while_it_is_asked_has_not_answered(store, volume, act):
    place = store._backend._backend
    name = "length" if act == "exists" else "list"
    ask = getattr(place, name)

    def asked(what):
        if what.startswith("manifests"):
            volume.unmount()
        return ask(what)

    setattr(place, name, asked)
    with pytest.raises(StoreAbsent):
        store.exists("one") if act == "exists" else store.ids()


def test_another_store_is_not_taken_for_it(volume, known):
    known.take("a" * 32)
    other = IdentityCheck(volume.place, KEYS, known)
    other.make(ID)
    with pytest.raises(StoreAbsent, match=f"another one .{ID}, not {'a' * 32}"):
        other.confirm()


def test_empty_place_is_no_store_until_one_is_begun_there(volume, known):
    check = IdentityCheck(volume.place, KEYS, known)
    with pytest.raises(StoreAbsent, match="no store was begun there"):
        check.confirm()
    assert not volume.below()
    check.make(ID)
    check.make("another")  # once is enough
    check.confirm()
    assert known.word().store == ID


def test_store_of_a_version_that_gave_none_gets_one_once(volume, known, tmp_path):
    old = Repository(volume.place, clock=ManualClock(), keys=KEYS)
    save(old, "one")
    IdentityCheck(volume.place, KEYS, known).confirm()
    (tmp_path / "other").mkdir()
    second = KnownStore(tmp_path / "other")
    IdentityCheck(volume.place, KEYS, second).confirm()
    assert known.word().store == second.word().store != ""


def test_identity_is_kept_when_the_master_key_changes(volume, known):
    IdentityCheck(volume.place, KEYS, known).make(ID)
    both = KeyRing({"k1": b"1" * 32, "k2": b"2" * 32})
    check = IdentityCheck(volume.place, both, known)
    assert check.rekey()
    assert not check.rekey()
    new = IdentityCheck(volume.place, KeyRing({"k2": b"2" * 32}), known)
    assert new.found().id == ID
    with pytest.raises(Exception, match="master key k2"):
        IdentityCheck(volume.place, KEYS, known).found()


def test_identity_that_was_changed_does_not_open(volume, known):
    check = IdentityCheck(volume.place, KEYS, known)
    check.make(ID)
    data = bytearray(volume.place.read("identity", 0, 1000))
    data[-1] ^= 1
    volume.place.replace("identity", bytes(data))
    with pytest.raises(Exception, match="not what was written"):
        check.confirm()
    with pytest.raises(ObjectExists):
        volume.place.publish("identity", b"")
