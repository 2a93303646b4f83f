"""Docker in a folder of its own, with an image that no registry has been asked for."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from demo.stack import free_port
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.linux.mounts import read_mounts
from jupyterhub_gpu_reclaim.node.sessions.docker_placements import DockerEngine
from jupyterhub_gpu_reclaim.session_init.command_line import labelled
from tests.support.agent import PATIENCE, Agent, criu_folder, short_folder, wait_for
from tests.support.containers import run
from tests.support.elsewhere import reclaim, suspended, wait
from tests.support.hub import HubUnderTest, proxy_command

IMAGE = "test/session:1"
#: Containers have the machine's network, or one without anything in it.
NO_NETWORK = ("--bridge=none", "--iptables=false")
#: What a session's programs need, at the same path in its container.
PROGRAMS = sorted({"/usr", sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])})
FOLDERS = ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "srv", "root", "home")


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


ROOT = packed(
    *(entry(name, tarfile.DIRTYPE) for name in FOLDERS),
    *(
        entry(name, tarfile.SYMTYPE, f"usr/{name}")
        for name in ("bin", "lib", "lib64", "sbin")
    ),
)
#: Of a Hub, with lines of the test's own.
CONFIG = """
from jupyterhub_gpu_reclaim.hub.config import configure
c.DockerSpawner.image = {image!r}
c.DockerSpawner.client_kwargs = {{"base_url": "unix://{folder}/docker/d.sock"}}
c.DockerSpawner.read_only_volumes = {{path: path for path in {programs!r}}}
c.DockerSpawner.volumes = {{"{folder}/homes/{{username}}": "/home"}}
c.SessionContainerSpawner.session_python = {python!r}
c.SessionContainerSpawner.realm = {realm!r}
c.Spawner.args = ["--allow-root"]
c.Spawner.environment = {{**c.Spawner.environment, "HOME": "/home"}}
c.Spawner.notebook_dir = "/home"
c.Spawner.poll_interval = 1
c.JupyterHub.load_roles.append({{
    "name": "tests-reclaim",
    "services": ["tests"],
    "scopes": ["custom:gpu-reclaim:manage", "access:services!service=gpu-reclaim"],
}})
{more}
configure(
    c,
    placement="docker",
    agent="unix:{folder}/agent.sock",
    agent_token_file="{folder}/token",
    state_dir="{folder}/service",
    service_port={service_port},
    idle_after=0,
    sample_interval=0.5,
)
"""


class Docker:
    def __init__(self, folder: Path, network: Sequence[str]) -> None:
        self.network = network
        self.folder = folder / "docker"
        self.folder.mkdir()
        self.socket = self.folder / "d.sock"
        self.start()
        self.tag(ROOT)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.popen = subprocess.Popen(
                [
                    *("dockerd", "--live-restore", "--ip6tables=false"),
                    *self.network,
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
        transport = httpx.HTTPTransport(uds=str(self.socket), verify=False)
        with httpx.Client(
            transport=transport, base_url="http://docker", timeout=PATIENCE
        ) as client:
            return client.request(method, path, **more)

    def tag(self, root: bytes) -> None:
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
        for each in self.containers():
            init = labelled(each["Labels"])
            if init is not None and init.user == user:
                found = self.ask("GET", f"/containers/{each['Id']}/json")
                return json.loads(found.content) if found.is_success else None
        return None

    def run_beside(self, network: str, *command: str) -> str:
        made = self.ask(
            "POST",
            "/containers/create",
            json={
                "Image": IMAGE,
                "Cmd": command,
                "HostConfig": {
                    "NetworkMode": network,
                    "Binds": [f"{path}:{path}:ro" for path in PROGRAMS],
                },
            },
        ).json()["Id"]
        started = self.ask("POST", f"/containers/{made}/start")
        assert started.is_success, started.text
        return made

    def remove(self, container: str) -> None:
        self.ask("DELETE", f"/containers/{container}?force=1")

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


def own_folder():
    with short_folder() as path:
        yield path


def daemon(folder: Path, network: Sequence[str] = NO_NETWORK):
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "containerd"))):
        pytest.skip("needs root and dockerd: apt-get install docker.io")
    made = Docker(folder, network)
    yield made
    made.close()


def options(docker: Docker) -> tuple[str, str]:
    return ("--AgentApp.placement=docker", f"--AgentApp.docker_socket={docker.socket}")


def agent_beside(folder: Path, docker: Docker):
    made = Agent(folder, criu_folder())
    made.start(*options(docker))
    yield made
    made.terminate()
    print(made.log.read_text()[-5000:])


def hub_beside(folder: Path, agent: Agent, more: str):
    if proxy_command() is None:
        pytest.skip("configurable-http-proxy is not installed (npm install)")
    config = CONFIG.format(
        image=IMAGE,
        folder=folder,
        programs=PROGRAMS,
        python=sys.executable,
        realm=agent.folder.name,
        service_port=free_port(),
        more=more,
    )
    hub = HubUnderTest(folder, config)
    try:
        hub.start()
        wait(hub.service_ready, hub)
        yield hub
    finally:
        hub.close()
        print(hub.log()[-8000:])


def suspend(hub: HubUnderTest, docker: Docker) -> None:
    assert reclaim(hub, "POST", "sessions/ann/-/suspend").ok
    suspended(hub, "ann", 60)
    wait(lambda: docker.of("ann") is None, hub)
