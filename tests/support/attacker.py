"""A session of another user than root, saved once and attacked many times.

Its program holds files in every way that CRIU knows. A test resets the user's folder,
changes something in it as that user could, and brings the session back: in a place of
its own each time, from the same image.
"""

import dataclasses
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import capabilities
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser
from tests.checkpoint.conftest import REPL, Engine, Image, Places, World, fingerprints
from tests.checkpoint.test_other_user import GID, UID, built_shim

SECRET = "the secret of another user"

#: Every way to have a file. What is written is flushed, so that sizes are known.
HOLD = """
import fcntl, mmap
os.chdir("work")
reads = open("../docs/read")
appends = open("../docs/append", "a")
writes = open("../docs/write", "r+")
maps = open("../docs/map", "r+b")
mapped = mmap.mmap(maps.fileno(), 0)
maps.close()
deleted = open("../gone/deleted", "w+")
deleted.write("what was deleted"); deleted.flush(); os.unlink(deleted.name)
os.mkfifo("../fifo")
fifo = os.open("../fifo", os.O_RDWR)
os.write(fifo, b"in the fifo")
two = [open("../docs/read"), open("../docs/read")]
two[0].seek(4)
import ctypes
server = socket.socket(socket.AF_UNIX)
server.bind(os.path.abspath("../run/server")); server.listen()
talker = socket.socket(socket.AF_UNIX); talker.connect(server.getsockname())
accepted, _ = server.accept()
mail = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mail.bind(os.path.abspath("../run/mail"))
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.connect(mail.getsockname())
libc = ctypes.CDLL(None)
watcher = libc.inotify_init1(os.O_NONBLOCK)
watch = libc.inotify_add_watch(watcher, b"../watched", 0x100)
"""


@dataclass
class Victim:
    engine: Engine
    home: Path
    copy: Path
    image: Image
    result: object
    opened: list
    port: int
    places: Places

    def reset(self) -> None:
        if self.home.is_symlink():
            self.home.unlink()
        shutil.rmtree(self.home, ignore_errors=True)
        subprocess.run(["cp", "-a", "--", self.copy, self.home], check=True)

    def restore(self, *, image=None, fingerprinted=True, **options):
        place = self.places.hold()
        home = bytes(self.home)
        known = [
            one for one in self.opened if fingerprinted or not one.path.startswith(home)
        ]
        options.setdefault("opened", known)
        restored = self.engine.restore(
            place, image or self.image, self.result, **options
        )
        proceed(restored, self.result.stopped)
        return World(place, self.port)


def criu_for_any_user(criu: criu_module.Criu, folder: Path) -> criu_module.Criu:
    """CRIU, with a shim where root lacks CAP_SYS_RESOURCE (see ``test_other_user``)."""
    if capabilities.has("SYS_RESOURCE"):
        return criu
    shim = built_shim()
    loader = folder / "loader"
    loader.write_text(f'#!/bin/sh\nexec {criu.loader} --preload {shim} "$@"\n')
    loader.chmod(0o755)
    return dataclasses.replace(criu, loader=loader)


def make_home(folder: Path) -> Path:
    home = folder / "home"
    for name in ("work", "gone", "watched", "docs", "run"):
        (home / name).mkdir(parents=True)
    for name in ("read", "append", "write", "map"):
        (home / "docs" / name).write_text(f"own {name}".ljust(len(SECRET)))
    for path in (home, *home.rglob("*")):
        os.chown(path, UID, GID)
    return home


def system_python() -> str:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if python is None:
        pytest.skip("needs a python3 of the system, which every user may run")
    return python


def start_session(
    folder: Path, places: Places, told: str = "1", groups: tuple[int, ...] = ()
) -> World:
    python = system_python()
    folder.chmod(0o755)
    home = make_home(folder)
    user = SystemUser(UID, GID, groups)
    place = places.start(python, "-c", REPL, system_user=user, chdir=str(home))
    place.read_until("port ")
    world = World(place, int(place.read_until("\n")))
    world(told)
    return world


def save_session(
    criu, folder: Path, places: Places, told: str = HOLD, groups: tuple[int, ...] = ()
) -> Victim:
    world = start_session(folder, places, told, groups)
    place, home = world.place, folder / "home"
    engine = Engine(criu, folder)
    image = engine.image()
    result = engine.dump(place, image.sink)
    opened = fingerprints(place)
    copy = folder / "as it was"
    place.kill()
    subprocess.run(["cp", "-a", "--", home, copy], check=True)
    return Victim(engine, home, copy, image, result, opened, world.port, places)


def make_folder() -> Path:
    """A folder that every user may walk; the caller removes it."""
    return Path(tempfile.mkdtemp(prefix="gpu-reclaim-hostile-", dir="/tmp"))
