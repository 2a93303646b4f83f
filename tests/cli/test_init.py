"""The store of the agent's key: commands refuse another, ``init`` begins one."""

import json
import tempfile
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.common import durable
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.app import AgentApp
from jupyterhub_gpu_reclaim.node.setup import settings, store_init
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.identified import StoreAbsent, store_at
from jupyterhub_gpu_reclaim.store.format.keys import load_keys, new_key_line
from simulation.doubles.memory_backend import MemoryBackend


@pytest.fixture
def state():
    """The agent's state folder; its path must be short."""
    with tempfile.TemporaryDirectory(prefix="gra-", dir="/tmp") as folder:
        made = Path(folder, "agent")
        made.mkdir()
        yield made


@pytest.fixture
def place(tmp_path):
    """The store's folder; nothing is there yet."""
    return tmp_path / "sessions"


@pytest.fixture
def key(tmp_path):
    return tmp_path / "keys" / "master.key"


@pytest.fixture
def agents_file(place, key, state, tmp_path):
    """The agent's configuration file, where agent and commands look for it."""
    key.parent.mkdir()
    path = tmp_path / "agent.py"
    path.write_text(
        "c = get_config()\n"
        f"c.AgentApp.store_url = {str(place)!r}\n"
        f"c.AgentApp.master_key_file = {str(key)!r}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_folder, "AGENT_FILE", str(path))
        patch.setenv(state_folder.VARIABLE, str(state))
        for kind in (settings.AgentSettings, AgentApp):
            defaults = kind._static_immutable_initial_values  # traitlets' own
            patch.setitem(defaults, "config_file", str(path))
        yield path


@pytest.fixture
def act(agents_file, capsys):
    def act(*words):
        code = main(["store", *words])
        out, err = capsys.readouterr()
        return code, out + err

    return act


@pytest.fixture
def begun(act):
    code, told = act("init", "--json")
    assert code == 0, told
    return json.loads(told)["store"]


def unmount(place):
    aside = place.rename(place.with_name("not mounted"))
    place.mkdir()
    return aside


def test_agents_own_file_is_read_by_the_agent_and_by_the_commands(
    agents_file, begun, place, act
):
    agent = AgentApp()
    agent.initialize([])
    assert agent.store_url == str(place)
    assert act("ls")[0] == 0
    agents_file.unlink()
    AgentApp().initialize([])  # it need not be there
    with pytest.raises(SystemExit):
        AgentApp().initialize([f"--config={agents_file}"])
    with pytest.raises(SystemExit):
        AgentApp().initialize(["--config=/nowhere/agent.py"])


def test_store_is_begun_with_its_key_and_once(act, begun, place, key):
    assert store_at(FolderBackend(place)) == load_keys(file=key).store_id == begun
    before = key.read_text()
    code, told = act("init")
    assert (code, told.splitlines()[0]) == (0, f"The store {begun} is at {place}.")
    assert f"Keep a copy of its master key elsewhere: {key}" in told
    assert key.read_text() == before
    assert [each.name for each in key.parent.iterdir()] == ["master.key"]


def test_store_that_is_not_mounted_is_refused_until_it_is_back(act, begun, place):
    aside = unmount(place)
    for words in (
        ("ls",),
        ("verify",),
        ("rekey",),
        ("rm", "ada-1"),
        ("show", "ada-1"),
        ("init",),
    ):
        code, told = act(*words)
        assert code == 1
        assert f"is not there: {place} holds no store. Mount" in told, words
    assert not [path for path in place.rglob("*") if path.is_file()]
    for each in place.iterdir():
        each.rmdir()
    place.rmdir()
    aside.rename(place)
    assert act("ls")[0] == 0
    assert act("init")[0] == 0


def test_another_store_is_begun_by_a_persons_word_alone(act, begun, place, key):
    keys = key.read_text().splitlines()[1:]
    former = unmount(place)
    key.write_text("\n".join(keys))
    code, told = act("init", "--json")
    assert code == 0
    second = json.loads(told)["store"]
    assert second != begun
    assert key.read_text().splitlines() == [f"store-id {second}", *keys]
    assert act("ls")[0] == 0
    place.rename(place.with_name("second"))
    former.rename(place)
    code, told = act("ls")
    assert (code, f"holds the store {begun}" in told) == (1, True)


def test_key_that_a_person_made_stays_and_gets_the_id(act, place, key):
    line = new_key_line("ours")
    key.write_text(f"# ours\n{line}")
    key.chmod(0o600)
    code, told = act("ls")
    assert (code, "There is no store at" in told) == (1, True)
    assert act("init")[0] == 0
    assert key.read_text().splitlines()[1:] == ["# ours", line.strip()]
    assert key.stat().st_mode & 0o777 == 0o600
    assert act("ls")[0] == 0


def test_key_without_an_id_takes_no_store_that_has_one(act, begun, key):
    lines = key.read_text().splitlines(keepends=True)
    key.write_text("".join(lines[1:]))
    for words in (("ls",), ("init",)):
        code, told = act(*words)
        assert code == 1
        assert begun in told
        assert "store-id" in told
    key.write_text(f"{lines[1]}store-id {begun}\n")  # as it says
    assert act("ls")[0] == 0


def test_keys_of_a_secret_need_their_id_in_it(act, agents_file, place, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "2026").write_bytes(b"k" * 32)
    where = [f"--AgentApp.store_url={place}", f"--AgentApp.master_key_dir={secret}"]
    code, told = act("init", *where)
    assert (code, "Give it a new store-id there" in told) == (1, True)
    (secret / "store-id").write_text("5" * 32)
    for _ in range(2):
        assert act("init", *where) == (0, f"The store {'5' * 32} is at {place}.\n")
    assert act("ls", *where)[0] == 0
    (secret / "store-id").write_text("6" * 32)
    code, told = act("init", *where)
    assert (code, f"holds the store {'5' * 32}" in told) == (1, True)


class Died(BaseException):
    """The process was killed."""


def dies_at(step, monkeypatch):
    """The process is killed right before, or after, one of its writes."""
    calls = []

    def dying(name, work):
        def call(*given, **more):
            calls.append(name)
            before = 2 * len(calls) - 2
            if step == before:
                raise Died
            done = work(*given, **more)
            if step == before + 1:
                raise Died
            return done

        return call

    for kind, name in (
        (store_init, "write_durably"),
        (MemoryBackend, "publish"),
        (Path, "replace"),
        (store_init, "sync_folder"),
    ):
        monkeypatch.setattr(kind, name, dying(name, getattr(kind, name)))


@pytest.mark.parametrize("made", [False, True], ids=["no key yet", "a person's key"])
@pytest.mark.parametrize("step", range(12))
def test_begin_that_is_killed_at_any_step_is_repeated_and_makes_one_pair(
    tmp_path, step, made
):
    place, file = MemoryBackend(), tmp_path / "master.key"
    if made:
        file.write_text(new_key_line("ours"))
        file.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        dies_at(step, patch)
        try:
            store_init.begin(place, "there", file, 0.0)
        except Died:
            pass
        else:
            assert step >= 10
    seen = store_at(place)
    if file.exists() and load_keys(file=file).store_id:
        assert seen == load_keys(file=file).store_id  # never a key before its store
    store = store_init.begin(place, "there", file, 0.0)
    assert store == store_at(place) == load_keys(file=file).store_id
    assert seen in ("", store)
    assert [each.name for each in tmp_path.iterdir()] == ["master.key"]
    assert ("ours" in file.read_text()) == made


def test_what_was_cut_off_elsewhere_takes_no_other_store(tmp_path):
    """A start that was cut off; then this machine gets the key of another one."""
    place, file = MemoryBackend(), tmp_path / "master.key"

    def away(*_):
        raise StoreError(Reason.STORE_UNREACHABLE, why="it does not answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "publish", away)
        with pytest.raises(StoreError):
            store_init.begin(place, "there", file, 0.0)
    there = store_init.begin(place, "there", tmp_path / "theirs.key", 0.0)
    with pytest.raises(StoreAbsent):
        store_init.begin(place, "there", file, 0.0)
    assert not file.exists()
    (tmp_path / "theirs.key").rename(file)
    assert store_init.begin(place, "there", file, 0.0) == there


def test_key_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(store_init, "write_durably", full)
    with pytest.raises(StoreError, match=r"master key, cannot be written"):
        store_init.begin(MemoryBackend(), "there", tmp_path / "master.key", 0.0)
    monkeypatch.setattr(store_init, "write_durably", durable.write_durably)
    assert store_init.begin(MemoryBackend(), "there", tmp_path / "master.key", 0.0)
