"""The store that the agent means: commands refuse another, ``adopt`` takes one."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.node.app import AgentApp
from jupyterhub_gpu_reclaim.node.operations.known_store import KnownStore
from jupyterhub_gpu_reclaim.node.setup import settings


@pytest.fixture
def state():
    """The agent's state folder; its path must be short."""
    with tempfile.TemporaryDirectory(prefix="gra-", dir="/tmp") as folder:
        made = Path(folder, "agent")
        made.mkdir()
        yield made


@pytest.fixture
def agents_file(store, state, tmp_path):
    """The agent's configuration file, where agent and commands look for it."""
    path = tmp_path / "agent.py"
    path.write_text(
        "c = get_config()\n"
        f"c.AgentApp.store_url = {str(store.root)!r}\n"
        f"c.AgentApp.state_dir = {str(state)!r}\n"
        f"c.AgentApp.master_key_file = {str(store.key_file)!r}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "AGENT_FILE", str(path))
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


def test_agents_own_file_is_read_by_the_agent_and_by_the_commands(
    agents_file, store, act
):
    agent = AgentApp()
    agent.initialize([])
    assert agent.store_url == str(store.root)
    assert act("ls")[0] == 0
    agents_file.unlink()
    AgentApp().initialize([])  # it need not be there
    with pytest.raises(SystemExit):
        AgentApp().initialize([f"--config={agents_file}"])
    with pytest.raises(SystemExit):
        AgentApp().initialize(["--config=/nowhere/agent.py"])


def test_store_that_is_not_mounted_is_refused_until_it_is_back(act, store, state):
    assert act("adopt")[0] == 0
    assert KnownStore(state).word().store
    aside = store.root.rename(store.root.with_name("not mounted"))
    store.root.mkdir()
    for words in (
        ("ls",),
        ("verify",),
        ("sweep",),
        ("rekey",),
        ("rm", "ada-1"),
        ("show", "ada-1"),
        ("drill",),
    ):
        code, told = act(*words)
        assert code == 1
        assert "The store of suspended sessions is not there" in told, words
    code, told = act("adopt")
    assert (code, "Is it mounted?" in told) == (1, True)
    assert not list(store.root.iterdir())
    store.root.rmdir()
    aside.rename(store.root)
    code, told = act("ls")
    assert (code, "3 saved" in told) == (0, True)


def test_another_store_is_taken_by_an_administrators_word(act, store, state):
    act("adopt")
    first = KnownStore(state).word()
    shutil.move(store.root, store.root.with_name("former"))
    code, told = act("adopt", "--empty", "--json")
    assert code == 0
    second = KnownStore(state).word()
    assert second.store in told
    assert second.store != first.store
    assert second.word > first.word
    assert act("ls")[0] == 0
    shutil.rmtree(store.root)
    shutil.move(store.root.with_name("former"), store.root)
    code, told = act("ls")
    assert (code, "holds another one" in told) == (1, True)


def test_administrators_word_holds_though_the_agents_state_was_lost(act, state):
    act("adopt")
    KnownStore(state).obey("another", 7)
    (state / "store.json").unlink()
    act("adopt")
    assert not KnownStore(state).obey("another", 7)  # the service's, of before


def test_rekey_of_all_keeps_the_identity_under_the_newest_key(act, store, state):
    act("adopt")
    store.key_file.write_text(
        store.key_file.read_text() + f"second {'ab' * 32}\n", encoding="ascii"
    )
    assert act("rekey")[0] == 0
    identity = (store.root / "identity").read_bytes()
    assert re.search(rb"second", identity)
    assert act("ls")[0] == 0


def test_adopt_needs_the_agents_own_place(act, state):
    code, told = act("adopt", "--store=/tmp/x")
    assert (code, "--store is no help" in told) == (1, True)
    state.rmdir()
    code, told = act("adopt")
    assert (code, "has not run here" in told) == (1, True)
