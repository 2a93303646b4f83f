import base64

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing, load_keys, new_key_line
from jupyterhub_gpu_reclaim.store.repository import Repository
from simulation.doubles.memory_backend import MemoryBackend

ONE, TWO = b"1" * 32, b"2" * 32


class Service:
    def wrap(self, data_key, checkpoint):
        return "kms", data_key[::-1]

    def unwrap(self, name, wrapped, checkpoint):
        return wrapped[::-1]


@pytest.mark.parametrize(("ring", "id_"), [({"a": TWO}, "c1"), ({"a": ONE}, "c2")])
def test_wrong_key_of_that_name_is_missing_and_not_damage(ring, id_):
    wrapped = KeyRing({"a": ONE}).wrap(b"data", "c1")
    with pytest.raises(StoreError) as caught:
        KeyRing(ring).unwrap(*wrapped, id_)
    assert caught.value.reason is Reason.KEY_MISSING
    assert "another key has the name a" in caught.value.message


def test_key_that_is_added_at_the_end_wraps_and_the_others_open(tmp_path):
    path = closed(tmp_path / "keys", new_key_line("first"))
    wrapped = load_keys(file=path).wrap(b"data", "c1")
    assert wrapped[0] == "first"
    with path.open("a") as file:
        file.write(f"# rotated\nsecond {TWO.hex()}\n")
    assert load_keys(file=path).unwrap(*wrapped, "c1") == b"data"
    assert load_keys(file=path).wrap(b"data", "c1")[0] == "second"


@pytest.mark.parametrize("where", ["file", "folder", "service"])
@pytest.mark.parametrize("store", ["", "5" * 32])
def test_id_of_the_store_stands_beside_the_keys_and_is_none_of_them(
    tmp_path, monkeypatch, where, store
):
    if where == "file":
        line = f"store-id {store}\n" if store else ""
        ring = load_keys(file=closed(tmp_path / "keys", f"{line}a {ONE.hex()}\n"))
    elif where == "folder":
        (tmp_path / "a").write_bytes(ONE)
        if store:
            (tmp_path / "store-id").write_text(f"{store}\n")
        ring = load_keys(folder=tmp_path)
    else:
        monkeypatch.setattr(Service, "store_id", store, raising=False)
        ring = load_keys(hook=f"{__name__}:Service")
    assert ring.store_id == store
    assert ring.unwrap(*ring.wrap(b"data", "c1"), "c1") == b"data"


def test_id_of_a_store_that_is_none_is_refused(tmp_path):
    text = f"store-id {ONE.hex()}\na {ONE.hex()}\n"
    with pytest.raises(StoreError, match="not 32 hexadecimal digits"):
        load_keys(file=closed(tmp_path / "keys", text))


def closed(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_file_and_mounted_secret_give_the_same(tmp_path):
    lines = closed(tmp_path / "..keys", f"a {ONE.hex()}\nb {TWO.hex()}")
    wrapped = load_keys(file=lines).wrap(b"data", "c1")
    # As the kubelet mounts a Secret: links to a folder with two dots.
    hidden = tmp_path / "..2026"
    hidden.mkdir()
    for name, text in (("a", ONE), ("b", base64.b64encode(TWO) + b"\n")):
        (hidden / name).write_bytes(text)
        (tmp_path / name).symlink_to(hidden / name)
    assert load_keys(folder=tmp_path).unwrap(*wrapped, "c1") == b"data"
    assert load_keys(folder=tmp_path).wrap(b"data", "c1")[0] == "b"


class ServiceWithLongNames(Service):
    """As a cloud calls its keys: nothing that a manifest's head takes."""

    def wrap(self, data_key, checkpoint):
        return "arn:aws:kms:eu-central-1:1:key/2", data_key


class ServiceThatFails(Service):
    def wrap(self, data_key, checkpoint):
        raise RuntimeError("AccessDenied")

    def unwrap(self, name, wrapped, checkpoint):
        raise RuntimeError("AccessDenied")


class ServiceThatOnlyWraps(Service):
    def unwrap(self, name, wrapped, checkpoint):
        raise RuntimeError("AccessDenied")


class ServiceThatForgets(Service):
    def unwrap(self, name, wrapped, checkpoint):
        return bytes(32)


@pytest.mark.parametrize(
    "service",
    [ServiceWithLongNames, ServiceThatFails, ServiceThatOnlyWraps, ServiceThatForgets],
)
def test_nothing_is_committed_that_its_key_service_would_not_open(clock, service):
    backend = MemoryBackend()
    ring = load_keys(hook=f"{__name__}:{service.__name__}")
    store = Repository(backend, clock=clock, keys=ring)
    writer = store.begin(id="c1", key=SessionKey("a"), incarnation="i", generation=1)
    writer.add("a", b"data")
    with pytest.raises(StoreError):
        writer.commit()
    assert store.list() == []
    assert backend.objects == {}


def test_key_service_that_fails_says_nothing_of_the_checkpoint():
    with pytest.raises(Unavailable, match="the key service has failed") as caught:
        load_keys(hook=f"{__name__}:ServiceThatFails").unwrap("kms", b"x", "c1")
    assert caught.value.reason is Reason.KEY_MISSING


@pytest.mark.parametrize(
    "text",
    ["", "a", "a b c", "a zz", f"a {ONE.hex()}\na {ONE.hex()}", f"a/b {ONE.hex()}"],
)
def test_nonsense_is_refused_and_not_repeated(tmp_path, text):
    with pytest.raises(StoreError) as caught:
        load_keys(file=closed(tmp_path / "keys", text))
    assert ONE.hex() not in str(caught.value)


def test_ring_shows_names_only():
    assert repr(KeyRing({"a": ONE})) == "KeyRing(a)"
