"""A place that is not the store is used for nothing, on each kind of place (law 14)."""

import shutil

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.identified import (
    IdentifiedBackend,
    StoreAbsent,
    store_at,
)
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.memory_backend import MemoryBackend
from tests.support.manual_clock import ManualClock

KEY = SessionKey("ada")
ID, OTHER = "5" * 32, "a" * 32
KEYS = KeyRing({"k1": b"1" * 32}, ID)


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


def check(volume, keys=KEYS):
    return IdentifiedBackend(volume.place, keys, "the place")


@pytest.fixture
def store(volume):
    check(volume).begin()
    place = IdentifiedBackend(volume.place, KEYS, "the place")
    made = Repository(place, clock=ManualClock(), keys=KEYS)
    save(made, "one")
    return made


def save(store, checkpoint, *, before_commit=lambda: None):
    writer = store.begin(id=checkpoint, key=KEY, incarnation="i", generation=1)
    writer.add("pages", checkpoint.encode() * 10_000)
    before_commit()
    return writer.commit()


def test_nothing_is_believed_written_or_deleted_while_it_is_not_mounted(store, volume):
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
        with pytest.raises(StoreAbsent, match="the place holds no store") as caught:
            act()
        assert caught.value.reason is Reason.STORE_ABSENT
    assert not volume.below()
    volume.mount()
    assert store.open("one").read("pages") == b"one" * 10_000
    save(store, "two")


def test_volume_that_goes_before_the_commit_ends_it(store, volume):
    with pytest.raises(StoreAbsent):
        save(store, "two", before_commit=volume.unmount)
    volume.mount()
    assert store.ids() == ["one"]


@pytest.mark.parametrize("act", ["exists", "ids"])
def test_volume_that_goes_while_it_is_asked_has_not_answered(store, volume, act):
    place = store._backend._place
    name = "length" if act == "exists" else "list"
    ask = getattr(place, name)

    def asked(what):
        if what.startswith("manifests"):
            volume.unmount()
        return ask(what)

    setattr(place, name, asked)
    with pytest.raises(StoreAbsent):
        store.exists("one") if act == "exists" else store.ids()


def test_store_of_another_hub_is_not_used_or_changed(store, volume):
    """Its key has the same name and other bytes, and its store another id."""
    theirs = KeyRing({"k1": b"2" * 32}, OTHER)
    place = IdentifiedBackend(volume.place, theirs, "the place")
    other = Repository(place, clock=ManualClock(), keys=theirs)
    before = sorted(volume.below())
    for act in (
        lambda: save(other, "two"),
        lambda: other.open("one"),
        other.list,
        other.sweep,
        lambda: other.delete("one"),
    ):
        with pytest.raises(StoreAbsent, match=f"holds the store {ID}, and .*{OTHER}"):
            act()
    with pytest.raises(StoreAbsent):
        check(volume, theirs).begin()
    assert sorted(volume.below()) == before


def test_store_that_was_put_back_from_a_backup_is_the_same(store, volume):
    """And one whose first object was left behind is said to be that."""
    save(store, "two")
    volume.unmount()
    copy = dict(contents(volume))
    restored = MemoryBackend()
    for name, data in copy.items():
        restored.publish(name, data)
    place = IdentifiedBackend(restored, KEYS, "there")
    again = Repository(place, clock=ManualClock(), keys=KEYS)
    assert again.open("two").read("pages") == b"two" * 10_000
    save(again, "three")
    restored.delete("identity")
    with pytest.raises(StoreAbsent):
        again.list()
    with pytest.raises(StoreAbsent, match="no object identity: copy that one, too"):
        IdentifiedBackend(restored, KEYS, "there").begin()


def contents(volume):
    if isinstance(volume, Bucket):
        (first,) = [key for key in volume.aside if key.endswith("identity")]
        prefix = first.removesuffix("identity")
        return [(key.removeprefix(prefix), data) for key, data in volume.aside.items()]
    files = [path for path in volume.aside.rglob("*") if path.is_file()]
    return [(str(p.relative_to(volume.aside)), p.read_bytes()) for p in files]


def test_empty_place_is_no_store_until_one_is_begun_there(volume):
    with pytest.raises(StoreAbsent, match="holds no store"):
        check(volume).confirm()
    assert not volume.below()
    for _ in range(2):  # whoever repeats it changes nothing
        check(volume).begin()
        check(volume).confirm()
        assert store_at(volume.place) == ID


def test_key_of_no_store_opens_none(store, volume):
    bare = KeyRing({"k1": b"1" * 32})
    with pytest.raises(StoreAbsent, match=f"holds the store {ID}, and beside the mas"):
        check(volume, bare).confirm()
    volume.unmount()
    with pytest.raises(StoreAbsent, match='"jupyterhub-gpu-reclaim store init" begins'):
        check(volume, bare).confirm()


@pytest.mark.parametrize(
    "data", [b"", b"GRSTOID 1\n", b"GRSTOID 2\n" + ID.encode() + b"\n", ID.encode()]
)
def test_identity_that_is_none_is_nobodys(volume, data):
    volume.place.publish("identity", data)
    for act in (check(volume).confirm, check(volume).begin):
        with pytest.raises(StoreError, match="not what was written"):
            act()
    assert volume.place.read("identity", 0, 1000) == data
