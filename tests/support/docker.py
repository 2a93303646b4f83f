"""Docker in a folder of its own, with an image that no registry has been asked for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import httpx
import pytest

from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts
from jupyterhub_gpu_reclaim.node.sessions.docker_engine import DockerEngine
from tests.support.agent import PATIENCE, wait_for
from tests.support.containerd import FOLDERS, entry, packed
from tests.support.containers import run

IMAGE = "test/session:1"
#: What a session's programs need, at the same path in its container.
PROGRAMS = sorted({"/usr", sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])})
ROOT = packed(
    *(entry(name, tarfile.DIRTYPE) for name in (*FOLDERS, "root", "home")),
    *(
        entry(name, tarfile.SYMTYPE, f"usr/{name}")
        for name in ("bin", "lib", "lib64", "sbin")
    ),
)


class Docker:
    """The daemon, and what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "docker"
        self.folder.mkdir()
        self.socket = self.folder / "d.sock"
        self.start()
        self.tag(ROOT)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.popen = subprocess.Popen(
                [
                    *("dockerd", "--bridge=none", "--iptables=false"),
                    *("--ip6tables=false", "--live-restore"),
                    f"--data-root={self.folder}/data",
                    f"--exec-root={self.folder}/run",
                    f"--pidfile={self.folder}/pid",
                    f"--host=unix://{self.socket}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_for(self._answers)

    def _answers(self) -> bool:
        if self.popen.poll() is not None:
            log = (self.folder / "log").read_text()
            pytest.skip(f"dockerd does not run here: {log.splitlines()[-1:]}")
        with contextlib.suppress(Unreachable):  # (httpx would leave a socket open)
            DockerEngine(str(self.socket)).hints()
            return True
        return False

    def ask(self, method: str, path: str, **more) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with httpx.Client(
            transport=transport, base_url="http://docker", timeout=PATIENCE
        ) as client:
            return client.request(method, path, **more)

    def tag(self, root: bytes) -> None:
        """Make an image of those files, and give it the name."""
        made = self.ask(
            "POST",
            "/images/create",
            params={"fromSrc": "-", "repo": "test/session", "tag": "1"},
            content=root,
        )
        assert made.is_success, made.text
        assert "errorDetail" not in made.text, made.text

    def containers(self) -> list[dict]:
        return self.ask("GET", "/containers/json?all=1").json()

    def of(self, user: str) -> dict | None:
        """All that Docker knows of the container of a user's session."""
        for each in self.containers():
            if each["Labels"].get("gpu-reclaim.user") == user:
                found = self.ask("GET", f"/containers/{each['Id']}/json")
                return json.loads(found.content) if found.is_success else None
        return None

    def stop(self) -> None:
        self.popen.terminate()
        self.popen.wait(PATIENCE)

    def close(self) -> None:
        if self.popen.poll() is not None:  # its containers live on
            self.start()
        for each in self.containers():
            self.ask("DELETE", f"/containers/{each['Id']}?force=1")
        self.stop()
        for mount in reversed(read_mounts("self")):  # it leaves one of its own
            if mount.target.is_relative_to(self.folder):
                run("umount", "-l", mount.target)


def daemon(folder: Path):
    """One daemon, or the reason why there is none."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "containerd"))):
        pytest.skip("needs root and dockerd: apt-get install docker.io")
    made = Docker(folder)
    yield made
    made.close()
