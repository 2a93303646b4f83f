"""containerd in a folder of its own, an image without a registry, sessions in it."""

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.session_init import command_line
from tests.support.agent import PATIENCE, wait_for
from tests.support.containers import Ordered, leave_groups, run

IMAGE = "docker.io/test/session:1"
CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/socket"
"""
FOLDERS = ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "srv")


#: Set where the agent is to be in a container of its own, so to speak.
CONFINED = "GPU_RECLAIM_TEST_CONFINED_AGENT"
#: No control groups, no folder of the runtime's, a read-only /proc/sys.
CONFINEMENT = """#!/bin/sh
exec unshare --mount --cgroup --uts --ipc sh -c '
umount -R -l /sys/fs/cgroup
mount -t tmpfs hidden {folder}/containerd
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
exec {python} "$@"' sh "$@"
"""


def confine(folder: Path) -> Path:
    """A Python that sees all processes, and little else of the host."""
    (folder / "containerd").mkdir()
    program = folder / "confined-python"
    program.write_text(CONFINEMENT.format(folder=folder, python=sys.executable))
    program.chmod(0o755)
    return program


def packed(*entries: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for one in entries:
            if isinstance(one, tarfile.TarInfo):
                tar.addfile(one)
                continue
            info = tarfile.TarInfo(one[0])
            info.size, info.mode = len(one[1]), 0o644
            tar.addfile(info, io.BytesIO(one[1]))
    return out.getvalue()


def entry(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    return info


def image() -> bytes:
    """A root of hardly anything; programs and libraries are mounted into it."""
    layer = packed(
        *(entry(name, tarfile.DIRTYPE) for name in FOLDERS),
        *(
            entry(name, tarfile.SYMTYPE, f"usr/{name}")
            for name in ("bin", "lib", "lib64", "sbin")
        ),
        ("etc/issue", b"hello"),
    )
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {
            "type": "layers",
            "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()],
        },
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    return packed(
        ("config.json", json.dumps(config).encode()),
        ("manifest.json", json.dumps(manifest).encode()),
        ("layer.tar", layer),
    )


class Containerd:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "containerd"
        self.folder.mkdir(exist_ok=True)
        config = self.folder / "config.toml"
        config.write_text(CONFIG.format(folder=self.folder))
        with (self.folder / "log").open("wb") as log:
            self.popen = subprocess.Popen(
                ["containerd", "--config", str(config)], stdout=log, stderr=log
            )
        wait_for(self._answers)
        (self.folder / "image.tar").write_bytes(image())
        self.ctr("images", "import", self.folder / "image.tar")

    def _answers(self) -> bool:
        assert self.popen.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(AssertionError):
            return bool(self.ctr("version"))
        return False

    def ctr(self, *words: object) -> str:
        return run("ctr", "--address", self.folder / "socket", *words)

    def stop(self) -> None:
        self.popen.terminate()
        self.popen.wait(PATIENCE)


class Task(Ordered):
    """A session in a container of containerd's."""

    def __init__(self, containerd: Containerd, mode: str, *command: str) -> None:
        self.containerd = containerd
        self.uid = str(uuid.uuid4())
        self.id = secrets.token_hex(32)
        self.incarnation = uuid.uuid4().hex
        folder = containerd.folder
        programs = {"/usr", sys.base_prefix, sys.prefix} - {"/"}
        mounts = [
            f"--mount=type=bind,src={path},dst={path},options=rbind:ro"
            for path in sorted(programs)
        ]
        containerd.ctr(
            *("run", "--detach", "--seccomp", *mounts),
            f"--cgroup=/kubepods/besteffort/pod{self.uid}/{self.id}",
            f"--log-uri=file://{folder}/{self.id}.log",
            f"--pid-file={folder}/{self.id}.pid",
            *(f"--env={n}={v}" for n, v in command_line.inline_environment().items()),
            *(IMAGE, self.id),
            *(*command_line.inline(sys.executable), mode, "--relay"),
            *("--incarnation", self.incarnation, "--user=ann", "--server="),
            f"--realm={folder.parent.name}",
            *(["--", *command] if command else []),
        )
        self.init_pid = int((folder / f"{self.id}.pid").read_text())
        self.init_start = processes.start_time(self.init_pid)

    def read(self, path: str) -> str:
        """A file as the session sees it; empty while there is none."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.init_pid}/root{path}").read_text()
        return ""

    def delete(self) -> None:
        with contextlib.suppress(AssertionError):
            self.containerd.ctr("task", "rm", "--force", self.id)
        with contextlib.suppress(AssertionError):
            self.containerd.ctr("container", "rm", self.id)
        leave_groups(self.uid)


def tasks(folder: Path):
    """Makes sessions in containers of containerd's, and clears them away."""
    if os.geteuid() != 0 or shutil.which("containerd") is None:
        pytest.skip("needs root and containerd: apt-get install containerd runc")
    containerd = Containerd(folder)
    made: list[Task] = []

    def make(mode: str, *command: str) -> Task:
        made.append(Task(containerd, mode, *command))
        return made[-1]

    yield make
    for task in made:
        task.delete()
    containerd.stop()
