"""Programs with a false card under a false driver (``fake_cuda``), for a real agent."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by
from tests.support.agent import wait_for
from tests.support.sharing import SHARED

FAKE = Path(__file__).parent / "fake_cuda"
COMPILER = shutil.which("cc")
NEEDS = "needs a C compiler for the false driver"
#: Stands for the kernel's driver.
CONTROL = "control.so"
#: Has the driver's own thread of a program; beside the folder of its state.
OWN = "own.so"


def library(tmp_path_factory):
    if COMPILER is None:
        pytest.skip(NEEDS)
    folder = tmp_path_factory.mktemp("cuda")
    for source, name in (
        ("cuda.c", "libcuda.so.1"),
        ("control.c", CONTROL),
        ("own.c", OWN),
    ):
        built = ("-shared", "-fPIC", "-Wall", "-Werror", "-o", folder / name)
        subprocess.run([COMPILER, *built, FAKE / source], check=True)
    return folder


def driver(library, folder, monkeypatch):
    """The false driver, for the agent that is started next; its folder."""
    state = folder / "cuda"
    state.mkdir()
    shutil.copy(library / OWN, folder / OWN)
    monkeypatch.setenv("FAKE_CUDA_DIR", str(state))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return state


def counting(driver, library, monkeypatch):
    """The false driver also tells of memory whose it is: several may use the card."""
    monkeypatch.setenv("LD_PRELOAD", str(library / CONTROL))
    return driver


@contextlib.contextmanager
def device_file():
    path = Path(f"/dev/nvidia-test-{os.getpid()}-{time.monotonic_ns()}")
    path.write_bytes(b"")
    yield path
    path.unlink()


def device():
    with device_file() as path:
        yield path


@contextlib.contextmanager
def card_for_sessions(tmp_path_factory):
    """A false card for the agent that is started inside; as a kernel is told of it."""
    folder = tmp_path_factory.mktemp("card")
    made = library(tmp_path_factory)
    with pytest.MonkeyPatch.context() as monkeypatch, device_file() as path:
        state = driver(made, folder, monkeypatch)
        path.chmod(0o666)
        # Sessions are other users.
        for one in (folder.parent, folder, state):
            one.chmod(0o777)
        yield f"{state}:{path}"


def shared(tmp_path_factory) -> str:
    @contextlib.contextmanager
    def begin():
        with card_for_sessions(tmp_path_factory) as card:
            yield card

    return SHARED.get(begin) if COMPILER else ""


def start(driver, device, agent, places):
    def begin(*words: str):
        command = [sys.executable, "-I", "-S", str(FAKE / "user.py")]
        return places("start", *command, str(driver), str(device), *words, env={})

    return begin


def take_card(server, kernel: str, driver: Path, device: Path) -> None:
    server.run(kernel, f"import os; os.environ['FALSE_CARD'] = '{driver}:{device}'")
    server.run(kernel, (FAKE / "cell.py").read_text())


def killed_while_it_moves(agent, driver: Path, state: str, order) -> None:
    """Kill the agent in an order that moves a large program's memory.

    Args:
        state: that the driver has been asked for, "2" to move it out and "1" back.
    """

    def called_off() -> None:
        with contextlib.suppress(httpx.HTTPError):
            order()

    (told,) = (path for path in driver.iterdir() if path.name.isdecimal())
    calling = threading.Thread(target=called_off)
    calling.start()
    wait_for(lambda: told.read_text().startswith(state))
    time.sleep(0.2)
    agent.kill()
    calling.join()
    time.sleep(0.7)  # a program that runs without its memory ends in this time


def computes(place, who: str = "pc") -> None:
    """The program and its child go on from here, or whoever writes those letters."""
    seen = len(place.output.read_text())

    def all_of_them() -> bool:
        new = place.output.read_text()[seen:]
        assert "CRASHED" not in new
        return set(who) <= set(new)

    wait_for(all_of_them)


def holders(place) -> int:
    return sum(bool(held_by(process.pid)) for process in place.tree.processes)
