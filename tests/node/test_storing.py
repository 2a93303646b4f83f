"""What the store's settings open, and what they refuse at the start."""

import base64
import os
import re
import shutil
import stat

import pytest
from traitlets import TraitError

from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations import known_term
from jupyterhub_gpu_reclaim.node.setup import store_init
from jupyterhub_gpu_reclaim.node.setup.settings import AgentSettings
from jupyterhub_gpu_reclaim.node.setup.store import open_store
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from tests.support.manual_clock import ManualClock

KEY = SessionKey("ada")
ID = "a" * 32


@pytest.fixture
def opened(tmp_path):
    stores = []

    def open_it(**settings):
        given = {"store_url": str(tmp_path / "store"), **settings}
        state = tmp_path / "agent"
        state.mkdir(exist_ok=True)
        stores.append(open_store(AgentSettings(**given), ManualClock(), state=state))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def heard_a_service(tmp_path):
    """What the agent writes when a service asks it something."""
    (tmp_path / "agent" / known_term.FILE).write_text("{}")


def save(store, checkpoint="one"):
    writer = store.repository.begin(
        id=checkpoint, key=KEY, incarnation="i", generation=1
    )
    writer.add("pages", b"kernel " * 10_000)
    return writer.commit()


def begin_there(tmp_path):
    """As ``store init`` does."""
    keys = KeyRing({"k": bytes(32)}, ID)
    IdentifiedBackend(FolderBackend(tmp_path / "store"), keys, "there").begin()


def codes(store):
    return [found.code for found in store.presence.findings()]


def a_key(name="k1"):
    return f"{name} {base64.b64encode(os.urandom(32)).decode()}\n"


def test_first_start_makes_key_and_store_a_pair(opened, tmp_path, caplog):
    save(opened())
    file = tmp_path / "master.key"
    assert "keep a copy" in caplog.text
    pair, key = file.read_text().splitlines()
    assert pair.split()[0] == "store-id"
    assert pair.split()[1] in (tmp_path / "store" / "identity").read_text()
    assert key.startswith("2023-11-14-")
    assert key.split()[1] not in caplog.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert opened().repository.open("one").verify() == []
    assert {each.name for each in tmp_path.iterdir()} == {
        "agent",
        "master.key",
        "store",
    }


def test_key_that_is_gone_is_said_is_not_made_anew_and_is_used_when_it_is_back(
    opened, tmp_path
):
    save(opened())
    heard_a_service(tmp_path)
    key = (tmp_path / "master.key").rename(tmp_path / "not mounted")
    store = opened()
    (found,) = store.presence.findings()
    assert (found.code, found.fatal) == ("key_missing", True)
    assert f"{tmp_path / 'master.key'} is not there" in found.message
    with pytest.raises(StoreError, match=r"key_missing: .* is not there"):
        save(store, "two")
    assert not (tmp_path / "master.key").exists()
    key.rename(tmp_path / "master.key")
    assert store.presence.findings() == []
    save(store, "two")


def test_key_that_goes_while_the_agent_remembers_it_is_told_at_once(opened, tmp_path):
    store = opened()
    save(store)
    key = (tmp_path / "master.key").rename(tmp_path / "not mounted")
    (found,) = store.presence.findings()
    assert (found.code, found.fatal) == ("key_missing", False)
    assert f"{tmp_path / 'master.key'} is gone" in found.message
    save(store, "two")
    (tmp_path / "store").rename(tmp_path / "store not mounted")
    assert codes(store) == ["store_absent"]
    assert not (tmp_path / "master.key").exists()  # no other one is begun
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    (tmp_path / "store not mounted").rename(tmp_path / "store")
    key.rename(tmp_path / "master.key")
    assert store.presence.findings() == []


def test_checkpoints_are_not_left_out_of_a_list_while_their_key_is_gone(
    opened, tmp_path
):
    save(opened())
    heard_a_service(tmp_path)
    first = opened().repository
    file = tmp_path / "master.key"
    store_id, key = file.read_text().splitlines()
    file.write_text(f"{store_id}\n{a_key()}")
    store = opened()
    assert store.presence.findings() == []  # another key has been read
    file.rename(tmp_path / "not mounted")
    with pytest.raises(StoreError) as caught:
        store.repository.list()
    assert caught.value.reason is Reason.KEY_MISSING
    with pytest.raises(StoreError, match="is not there"):
        store.repository.verify("one")
    file.write_text(f"{store_id}\n{key}\n")
    file.chmod(0o600)
    assert [one.id for one in store.repository.list()] == ["one"]
    assert [one.id for one in first.list()] == ["one"]


@pytest.mark.parametrize("fault", ["open to all", "no key", "a folder"])
def test_key_that_cannot_be_used_is_no_fault_of_the_disk(opened, tmp_path, fault):
    save(opened())
    heard_a_service(tmp_path)
    file = tmp_path / "master.key"
    text = file.read_text()
    file.unlink()
    store = opened()
    if fault == "a folder":
        file.mkdir()
    else:
        file.write_text("k1 nothing\n" if fault == "no key" else text)
        file.chmod(0o644 if fault == "open to all" else 0o600)
    (found,) = store.presence.findings()
    assert found.code == "key_missing"
    assert str(file) in found.message


def test_key_and_store_that_are_both_not_mounted_are_not_made_anew(opened, tmp_path):
    save(opened())
    heard_a_service(tmp_path)
    for name in ("master.key", "store"):
        (tmp_path / name).rename(tmp_path / f"{name} not mounted")
    assert codes(opened()) == ["key_missing"]
    assert not (tmp_path / "master.key").exists()
    assert not list((tmp_path / "store").glob("i*"))


def test_second_machine_without_the_key_begins_no_store_beside_the_first(
    opened, tmp_path
):
    save(opened())
    identity = (tmp_path / "store" / "identity").read_text()
    (tmp_path / "master.key").rename(tmp_path / "on the first machine")
    (found,) = opened().presence.findings()
    assert found.code == "store_absent"
    assert re.search("holds the store .*: copy its master key to", found.message)
    assert not list(tmp_path.glob("master.key*"))
    assert (tmp_path / "store" / "identity").read_text() == identity


def test_agent_that_runs_takes_up_the_store_that_a_person_begins(opened, tmp_path):
    (tmp_path / "master.key").write_text(a_key())
    (tmp_path / "master.key").chmod(0o600)
    store = opened()
    (found,) = store.presence.findings()
    assert found.code == "store_absent"
    assert '"jupyterhub-gpu-reclaim store init" begins one at' in found.message
    assert not (tmp_path / "store" / "identity").exists()
    place = FolderBackend(tmp_path / "store")
    store_init.begin(place, "there", tmp_path / "master.key", 0.0)
    save(store)


@pytest.mark.parametrize("place", ["file", "dir", "service"])
def test_key_is_taken_from_where_it_is_said_to_be(opened, tmp_path, place):
    value = {
        "file": str(tmp_path / "keys"),
        "dir": str(tmp_path / "secret"),
        "service": "tests.node.test_storing:KeyService",
    }[place]
    (tmp_path / "keys").write_text(f"store-id {ID}\n{a_key()}")
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "k1").write_bytes(os.urandom(32))
    (tmp_path / "secret" / "store-id").write_text(f"{ID}\n")
    settings = {f"master_key_{place}": value}
    assert codes(opened(**settings)) == ["store_absent"]
    begin_there(tmp_path)
    save(opened(**settings))
    assert not (tmp_path / "master.key").exists()
    assert opened(**settings).repository.open("one").size("pages") == 70_000


class KeyService:
    """A key service that hides nothing: only the way to it is tried."""

    store_id = ID

    def wrap(self, data_key, checkpoint):
        return "service", data_key[::-1]

    def unwrap(self, name, wrapped, checkpoint):
        assert name == "service"
        return wrapped[::-1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"master_key_file": "{tmp}/k", "master_key_dir": "{tmp}"}, "one place only"),
        ({"master_key_dir": "{tmp}/nowhere"}, "cannot be read"),
        ({"master_key_service": "no.such:Class"}, "cannot be made"),
        ({"store_options": {"region": "x"}}, "no store options"),
        ({"store_url": "ftp://x"}, "begins with one of"),
        ({"store_url": "s3://b", "store_options": {"token": "x"}}, "is a secret"),
        ({"store_url": "relative/path"}, "is a whole path"),
        ({"store_url": "s3://b", "store_options_file": "{tmp}/no"}, "cannot be read"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(
    opened, tmp_path, settings, says
):
    settings = {
        name: value.format(tmp=tmp_path) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    (tmp_path / "master.key").write_text(a_key())
    (tmp_path / "master.key").chmod(0o600)
    with pytest.raises(ReclaimError, match=says) as caught:
        opened(**settings)
    assert isinstance(caught.value, BadRequest | StoreError)


def test_compression_that_makes_no_sense_is_refused_when_it_is_set():
    with pytest.raises(TraitError):
        AgentSettings(compression="rar")


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_compression_is_what_is_said(opened, compression):
    info = save(opened(compression=compression))
    assert (info.stored_bytes > 70_000) == (compression == "none")
