"""Containers as a node of a cluster has them, made by runc: a root of overlay layers,
namespaces, groups named as the kubelet names them, a filter, few capabilities."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from jupyterhub_gpu_reclaim.checkpoint.criu.process import SessionInit
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.sessions.placements import PodPlacements
from jupyterhub_gpu_reclaim.session_init import command_line
from tests.support import light_modules
from tests.support.agent import PATIENCE, SERVER, Agent, Jupyter, wait_for
from tests.support.init_words import init_words
from tests.support.ran import ran

#: What Docker and containerd leave to a container's root.
CAPABILITIES = [
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD"),
    *("CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP"),
    *("CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"),
]
#: The heart of their default filter.
FORBIDDEN = [
    *("mount", "umount2", "unshare", "setns", "pivot_root", "reboot", "swapon"),
    *("bpf", "kexec_load", "init_module", "delete_module", "userfaultfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "perf_event_open"),
]
MASKED = ["/proc/kcore", "/proc/keys", "/proc/acpi", "/sys/firmware"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
DEVPTS = ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")
#: Stays pid 1 above what it runs, as tini does.
ENTRY_POINT = ("sh", "-c", '"$@"; exit', "sh")
PORT = 8888
#: What the agent of a cluster's node is started with.
PLACEMENT = "--AgentApp.placement=kubernetes"


def run(*words: object) -> str:
    done = ran([str(word) for word in words])
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def mount(kind: str, target: str, source: str, *options: str) -> dict:
    return {
        "destination": target,
        "type": kind,
        "source": source,
        "options": list(options),
    }


def leave_groups(uid: str) -> None:
    """Remove a pod's own control groups, which no runtime does."""
    # They lie below the test's own groups, which each hierarchy may have deeper down.
    # Others' groups come and go meanwhile, which os.walk does not mind.
    found = [path for path, _, _ in os.walk("/sys/fs/cgroup")]
    for folder in [Path(path) for path in found if path.endswith(f"/pod{uid}")]:
        wait_for(lambda: _remove_group(folder))  # noqa: B023 awaited at once


def _remove_group(folder: Path) -> bool:
    """Whether it is gone; one whose last process is on its way out stays a little."""
    for inner in folder.glob("*/"):
        with contextlib.suppress(OSError):
            inner.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


KEY = {"user": "ann", "server": ""}


class Pod:
    def __init__(
        self,
        folder: Path,
        mode: str,
        *command: str,
        home: Path,
        env=(),
        incarnation: str = "",
        memory: int = 2 << 30,
        user: tuple[int, int] = (0, 0),
        more_capabilities: tuple[str, ...] = (),
    ) -> None:
        self.capabilities = [*CAPABILITIES, *more_capabilities]
        self.uid = str(uuid.uuid4())
        self.id = secrets.token_hex(32)
        self.incarnation = incarnation or uuid.uuid4().hex
        self.folder = folder / self.id[:8]
        self.runtime = folder / "runc"
        self.host = f"jupyter-{self.id[:6]}"
        self.output = self.folder / "output"
        self.shm = self.folder / "sandboxes" / self.id / "shm"
        self.root = self.folder / "root"
        for one in (self.shm, self.root, self.folder / "upper", self.folder / "work"):
            one.mkdir(parents=True)
        self.mounted: list[Path] = []
        self._mount("overlay", self.root, self._layers())
        self._mount("tmpfs", self.shm, "mode=1777,size=65536k")
        if user[0]:
            os.chown(home, *user)
            # In the image, so to speak: its Python may be in root's own folder.
            (self.root / Path(sys.base_prefix).parts[1]).chmod(0o755)
        self.ip = self._address()
        words = [
            *(ENTRY_POINT if mode == "start" else ()),
            *command_line.inline(sys.executable),
            *init_words(
                mode, *command, incarnation=self.incarnation, realm=folder.name
            ),
        ]
        env = {"PATH": "/usr/bin:/bin", **command_line.inline_environment()} | dict(env)
        self._write_bundle(words, home, env, memory, user)
        self._start()
        self.init_pid = int((self.folder / "pid").read_text())
        self.init_start = processes.start_time(self.init_pid)

    def _layers(self) -> str:
        return f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"

    def _mount(self, kind: str, where: Path, options: str) -> None:
        run("mount", "-t", kind, "-o", options, kind, where)
        self.mounted.append(where)

    @staticmethod
    def _address() -> str:
        """Of a net of four addresses, with the host's end one below."""
        number = secrets.randbelow(1 << 14) << 2
        return f"10.213.{number >> 8}.{(number & 255) + 2}"

    def _write_bundle(
        self, words: list[str], home: Path, env: dict, memory: int, user: tuple
    ) -> None:
        (self.folder / "hosts").write_text(f"{self.ip} {self.host}\n")
        secret = self.folder / "token"
        secret.mkdir()
        (secret / "token").write_text("of a service account")
        sets = ("bounding", "effective", "permitted")
        config = {
            "ociVersion": "1.0.2",
            "hostname": self.host,
            "root": {"path": str(self.root)},
            "process": {
                "user": dict(zip(("uid", "gid"), user, strict=True)),
                "args": words,
                "cwd": "/",
                "env": [f"{name}={value}" for name, value in env.items()],
                "capabilities": dict.fromkeys(sets, self.capabilities),
                "noNewPrivileges": True,
            },
            "mounts": [
                mount("proc", "/proc", "proc"),
                mount("tmpfs", "/dev", "tmpfs", "nosuid", "mode=755", "size=64m"),
                mount("devpts", "/dev/pts", "devpts", *DEVPTS),
                mount("mqueue", "/dev/mqueue", "mqueue"),
                mount("sysfs", "/sys", "sysfs", "ro"),
                mount("cgroup", "/sys/fs/cgroup", "cgroup", "ro"),
                mount("bind", "/dev/shm", str(self.shm), "rbind"),
                mount("tmpfs", "/scratch", "tmpfs", "mode=1777"),
                mount("tmpfs", "/scratch/data", "tmpfs", "mode=1777"),
                mount("bind", "/scratch/secrets/my", str(secret), "bind", "ro"),
                mount("bind", "/etc/hosts", f"{self.folder}/hosts", "bind"),
                mount("bind", "/run/secrets/my", str(secret), "bind", "ro"),
                mount("bind", "/home/ann", str(home), "bind"),
            ],
            "linux": {
                "namespaces": [
                    {"type": kind}
                    for kind in ("pid", "network", "ipc", "uts", "mount", "cgroup")
                ],
                "cgroupsPath": f"/kubepods/burstable/pod{self.uid}/{self.id}",
                "resources": {"memory": {"limit": memory}},
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
                "seccomp": {
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [{"names": FORBIDDEN, "action": "SCMP_ACT_ERRNO"}],
                },
            },
        }
        (self.folder / "config.json").write_text(json.dumps(config))

    def _runc(self, *words: object) -> None:
        run("runc", "--root", self.runtime, *words)

    def _start(self) -> None:
        with self.output.open("wb") as output:
            done = subprocess.run(
                [
                    *("runc", "--root", str(self.runtime), "create"),
                    *("--bundle", str(self.folder)),
                    *("--pid-file", f"{self.folder}/pid", self.id),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        assert done.returncode == 0, self.output.read_text()
        self._connect(int((self.folder / "pid").read_text()))
        self._runc("start", self.id)

    def _connect(self, pid: int) -> None:
        name = f"v{self.id[:8]}"
        near = self.ip.rpartition(".")[0] + f".{int(self.ip.rpartition('.')[2]) - 1}"
        run("ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", pid)
        run("ip", "addr", "add", f"{near}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        inside = ("nsenter", "-t", pid, "-n", "ip")
        run(*inside, "addr", "add", f"{self.ip}/30", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")

    @property
    def hint(self) -> dict:
        return {"pod": self.uid}

    def call(self, agent: Agent, order: str, *, image="", **body) -> list[dict]:
        path = f"/v1/sessions/{self.incarnation}/{order}"
        hint = {**self.hint, "key": KEY, "image": image}
        return agent.events(path, {"hint": hint, **body})

    def order(self, agent: Agent, order: str, body=()) -> httpx.Response:
        path = f"/v1/sessions/{self.incarnation}/{order}"
        return agent.post(path, {"hint": self.hint, **dict(body)})

    def seen(self, agent: Agent) -> dict:
        return agent.get(f"/v1/sessions/{self.incarnation}?pod={self.uid}").json()

    @property
    def session(self) -> SessionInit:
        """The init, which may have an entry point above it."""
        placements = PodPlacements(self.folder.parent.name)
        found = placements.find(self.incarnation, self.uid)
        return SessionInit(found.init_pid, found.init_start)

    @property
    def tree(self) -> processes.Snapshot:
        return processes.snapshot(self.session.init_pid, self.session.init_start)

    @property
    def alive(self) -> bool:
        return processes.start_time(self.init_pid) == self.init_start

    def delete(self) -> None:
        with contextlib.suppress(AssertionError):
            self._runc("delete", "--force", self.id)
        while self.mounted:
            run("umount", "-l", self.mounted.pop())
        leave_groups(self.uid)


def pods(folder: Path):
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc: apt-get install runc")
    made: list[Pod] = []

    def make(mode: str, *command: str, **options) -> Pod:
        made.append(Pod(folder, mode, *command, **options))
        return made[-1]

    yield make
    for pod in made:
        pod.delete()


class PodJupyter(Jupyter):
    def __init__(self, folder: Path, make) -> None:
        self.home, self.port = folder / "home", PORT
        self.home.mkdir()
        env = {
            "PYTHONPATH": str(light_modules.FOLDER),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/home/ann",
            "SHELL": "/bin/bash",
            "JUPYTERHUB_API_TOKEN": self.TOKEN,
            "JUPYTERHUB_SERVICE_URL": f"http://0.0.0.0:{PORT}{self.PREFIX}",
            "JUPYTERHUB_SERVICE_PREFIX": self.PREFIX,
            "JUPYTERHUB_USER": "ann",
        }
        self.place = make(
            "start",
            *(sys.executable, "-c", SERVER, "--allow-root", "--no-browser"),
            *("--ServerApp.ip=0.0.0.0", "--ServerApp.allow_remote_access=True"),
            f"--ServerApp.token={self.TOKEN}",
            f"--ServerApp.port={PORT}",
            f"--ServerApp.base_url={self.PREFIX}",
            "--ServerApp.root_dir=/home/ann",
            home=self.home,
            env=env,
        )
        self.client = httpx.Client(verify=False)
        self.move(self.place)
        wait_for(self.answers)

    def move(self, place: Pod) -> None:
        self.client.close()
        self.place = place
        self.url = f"http://{place.ip}:{PORT}{self.PREFIX}"
        self.client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"token {self.TOKEN}"},
            timeout=PATIENCE,
            verify=False,
        )

    def answers(self) -> bool:
        assert self.place.alive, self.place.output.read_text()
        try:
            return self.client.get("api").status_code == 200
        except httpx.TransportError:
            return False
