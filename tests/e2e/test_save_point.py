"""A session that is killed comes back as it was saved, if its user wants that."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing, Passphrase
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.export import import_checkpoint
from simulation.doubles.memory_backend import MemoryBackend
from tests.e2e.test_cycle import BIN, by_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from demo.admin import Admin
    from demo.user import User
    from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)


def test_killed_session_comes_back_as_it_was_saved_if_its_user_wants_that(
    stack: Stack, admin: Admin, user: User
) -> None:
    server = user.server()
    kernel = server.start_kernel()
    with kernel:
        kernel.run("get_ipython().history_manager.enabled = False")
        kernel.run("log = open('run.log', 'a'); x = ['as saved']")
        (result,) = by_command(stack, admin, "save", user.name)
        assert result["how"] == "done"
        # The same connection goes on.
        kernel.run("x.append('later'); log.write('one\\n'); log.flush()")
    assert admin.session(user.name)["phase"] == "running"

    tree = next(
        t for t in stack.trees() if t["key"] == {"user": user.name, "server": ""}
    )
    os.kill(tree["init_pid"], signal.SIGKILL)
    view = admin.wait(user.name, phase="suspended")
    assert view["failure"]["code"] == "ended_since_saved", view
    page = _page(user)
    assert "its last save point is from" in page
    assert "Choose what comes back" in page
    assert admin.session(user.name)["phase"] == "suspended"

    admin.resume(user.name)
    admin.wait(user.name, phase="running")
    user.visit(f"{server.prefix}lab")
    with kernel:
        assert kernel.run("print(x)").text == "['as saved']\n"
        kernel.run("log.write('two\\n'); log.flush()")
    log = stack.folder / "homes" / user.name / "run.log"
    assert log.read_text() == "one\ntwo\n"


@pytest.mark.long
def test_whatever_runs_is_saved_by_one_command_and_not_again_until_it_is_used(
    stack: Stack, admin: Admin, new_user: Callable[[], User]
) -> None:
    ada, bob = new_user(), new_user()
    for each in (ada, bob):
        each.start_server()
    kernel = bob.server().start_kernel()
    with kernel:
        kernel.run("x = 1")
        assert _all_saved(stack, admin, ada, bob) == ["saved", "saved"]
        point = admin.session(bob.name)["checkpoint"]
        # A sample after the save point has to show that nothing was used since.
        _until(
            lambda: _all_saved(stack, admin, ada, bob) == ["saved already"] * 2, pause=3
        )
        kernel.run("x = 2")
        since = time.time()
        _until(lambda: (admin.session(bob.name)["usage"] or {}).get("at", 0) > since)
        assert _all_saved(stack, admin, ada, bob) == ["saved already", "saved"]
    assert admin.session(bob.name)["checkpoint"] != point
    assert admin.session(bob.name)["phase"] == "running"


@pytest.mark.long
def test_own_save_point_is_downloaded_by_its_user_and_opens_with_the_passphrase(
    stack: Stack, admin: Admin, new_user: Callable[[], User], tmp_path: Path
) -> None:
    ada, eve = new_user(), new_user()
    ada.start_server()
    kernel = ada.server().start_kernel()
    with kernel:
        kernel.run("secret = 'in the mem' + 'ory only'")
        by_command(stack, admin, "save", ada.name)
    checkpoint = admin.session(ada.name)["checkpoint"]
    words, file = tmp_path / "words", tmp_path / "ada.grx"
    words.write_text("correct horse battery\n")

    def download(user: User, session: str) -> subprocess.CompletedProcess[str]:
        made = user.hub("POST", f"users/{user.name}/tokens", json={}).json()["token"]
        command = ("jupyterhub-gpu-reclaim", "export", session, checkpoint, str(file))
        return subprocess.run(
            [BIN / command[0], *command[1:], f"--passphrase-file={words}"],
            env={
                **os.environ,
                "JUPYTERHUB_API_TOKEN": made,
                "GPU_RECLAIM_URL": stack.url,
            },
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    for session in (ada.name, eve.name):
        refused = download(eve, session)
        assert (refused.returncode, file.exists()) == (1, False), refused.stderr
    done = download(ada, ada.name)
    assert done.returncode == 0, done.stderr
    data = file.read_bytes()
    assert b"in the memory only" not in data
    assert b"correct horse" not in data

    clock, elsewhere = SystemClock(), MemoryBackend()
    keys, opens = KeyRing({"other": b"k" * 32}), Passphrase("correct horse battery")
    with file.open("rb") as opened:
        info = import_checkpoint(opened, elsewhere, keys=keys, opens=opens, clock=clock)
    assert (info.id, info.key.user) == (checkpoint, ada.name)
    store = Repository(elsewhere, clock=clock, keys=keys)
    assert not list(store.verify(checkpoint))
    there = store.open(checkpoint)
    memory = b"".join(
        bytes(piece)
        for name in there.names()
        if "pages-" in name
        for piece in there.stream(name)
    )
    assert b"in the memory only" in memory

    file.write_bytes(data[:-1])
    with file.open("rb") as cut, pytest.raises(StoreError):
        import_checkpoint(cut, MemoryBackend(), keys=keys, opens=opens, clock=clock)


def _all_saved(stack: Stack, admin: Admin, *users: User) -> list[str]:
    """What became of these; others may run beside them."""
    told = by_command(stack, admin, "save-all", "--deadline", "60s")
    states = {each["key"]["user"]: each["state"] for each in told}
    return [states[user.name] for user in users]


def _until(condition: Callable[[], bool], seconds: float = 90, pause: float = 0.5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


def _page(user: User) -> str:
    """What a visit shows; it starts nothing."""
    deadline = time.monotonic() + 60
    while True:
        user.http.get(f"{user.base}/hub/spawn/{user.name}", timeout=60)
        page = user.http.get(f"{user.base}{user.server().prefix}lab", timeout=60)
        if "save point" in page.text:
            return page.text
        assert time.monotonic() < deadline, page.text[-2000:]
        time.sleep(0.5)
