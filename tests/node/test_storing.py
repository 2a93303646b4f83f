"""What the store's settings open, and what they refuse at the start."""

from __future__ import annotations

import base64
import os
import re
import stat

import pytest
from traitlets import TraitError

from jupyterhub_gpu_reclaim.common.errors import BadRequest, ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.node_status import StoreOrder
from jupyterhub_gpu_reclaim.node.setup.settings import AgentSettings
from jupyterhub_gpu_reclaim.node.setup.store import open_store
from tests.support.manual_clock import ManualClock

KEY = SessionKey("ada")


@pytest.fixture
def opened(tmp_path):
    stores = []

    def open_it(*, begin=True, **settings):
        given = {"store_url": str(tmp_path / "store"), **settings}
        state = tmp_path / "agent"
        state.mkdir(exist_ok=True)
        stores.append(open_store(AgentSettings(**given), ManualClock(), state=state))
        if begin:
            stores[-1].presence.obey(StoreOrder(store="a" * 32, begin=True))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def save(store, checkpoint="one"):
    writer = store.repository.begin(
        id=checkpoint, key=KEY, incarnation="i", generation=1
    )
    writer.add("pages", b"kernel " * 10_000)
    return writer.commit()


def a_key(name="k1"):
    return f"{name} {base64.b64encode(os.urandom(32)).decode()}\n"


def test_first_start_makes_a_key_beside_the_state_folder(opened, tmp_path, caplog):
    save(opened())
    file = tmp_path / "master.key"
    assert "keep a copy" in caplog.text
    assert file.read_text().split()[1] not in caplog.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith("2023-11-14-")
    assert opened().repository.verify("one") == []


def test_key_that_is_gone_is_said_is_not_made_anew_and_is_used_when_it_is_back(
    opened, tmp_path
):
    save(opened())
    key = (tmp_path / "master.key").rename(tmp_path / "not mounted")
    store = opened()
    status = store.presence.status()
    assert status.state == "unknown"
    assert re.search(r"master key .* is not there", status.why)
    with pytest.raises(StoreError, match=r"master key .* is not there"):
        save(store, "two")
    assert not (tmp_path / "master.key").exists()
    key.rename(tmp_path / "master.key")
    assert store.presence.status().state == "here"
    save(store, "two")


@pytest.mark.parametrize("place", ["file", "dir", "service"])
def test_key_is_taken_from_where_it_is_said_to_be(opened, tmp_path, place):
    value = {
        "file": str(tmp_path / "keys"),
        "dir": str(tmp_path / "secret"),
        "service": "tests.node.test_storing:KeyService",
    }[place]
    (tmp_path / "keys").write_text(a_key())
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "k1").write_bytes(os.urandom(32))
    settings = {f"master_key_{place}": value}
    save(opened(**settings))
    assert not (tmp_path / "master.key").exists()
    assert opened(**settings).repository.open("one").size("pages") == 70_000


class KeyService:
    """A key service that hides nothing: only the way to it is tried."""

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store_url", "relative/path"),
        ("compression", "rar"),
    ],
)
def test_value_that_makes_no_sense_is_refused_when_it_is_set(name, value):
    with pytest.raises(TraitError):
        AgentSettings(**{name: value})


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_compression_is_what_is_said(opened, compression):
    info = save(opened(compression=compression))
    assert (info.stored_bytes > 70_000) == (compression == "none")
