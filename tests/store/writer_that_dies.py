"""Run by ``test_crash``: saves a session, and dies before its n-th system call.

It forks a child for each n, because starting Python anew would take most of the time.
Every child writes the second generation of a copy of the same store.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.backends import folder
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS

PLAIN = os.urandom(400_000) + b"kernel " * 50_000


class SystemThatDies:
    """The system under the folder backend: every call that changes a disk counts."""

    calls = 0
    dies_at = 0

    def __getattr__(self, name):
        found = getattr(os, name)
        if name not in ("open", "write", "fsync", "close", "link", "unlink"):
            return found

        def call(*args, **kwargs):
            SystemThatDies.calls += 1
            if SystemThatDies.calls == SystemThatDies.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found(*args, **kwargs)

        return call


def save(root, number):
    repository = Repository(
        FolderBackend(root), clock=SystemClock(), keys=KEYS, pack_bytes=300_000
    )
    writer = repository.begin(
        id=f"c{number}", key=SessionKey("u"), incarnation="i", generation=number
    )
    plain = os.urandom(20_000)[: 5 * 4096] + PLAIN
    with writer.file("pages.img") as file:
        for at in range(0, len(plain), 65_536):
            file.write(plain[at : at + 65_536])
    writer.add("plain", plain)
    writer.commit()
    print(f"committed c{number}", flush=True)


def die_everywhere(root):
    """Prints how many calls there are, and for each n what the child has told."""
    save(root / "first", 1)
    at = total = 0
    while at <= total:
        shutil.copytree(root / "first", root / str(at))
        child = os.fork()
        if not child:
            SystemThatDies.dies_at = at
            folder.os = SystemThatDies()
            sys.stdout = (root / f"{at}.out").open("w")
            save(root / str(at), 2)
            print(SystemThatDies.calls, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        if at == 0:
            total = int((root / "0.out").read_text().split()[-1])
        at += 1
    print(total, flush=True)


if __name__ == "__main__":
    die_everywhere(Path(sys.argv[1]))
