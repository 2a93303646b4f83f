"""An agent in a container as its DaemonSet has it: the node's processes, its rights."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import uuid
from pathlib import Path

from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node import state_folder
from tests.support import helm
from tests.support.agent import Agent, wait_for
from tests.support.containers import DEVPTS, PLACEMENT, leave_groups, mount, run


class AgentContainer(Agent):
    """What it writes comes out of a pipe, which a runtime reads to its end."""

    def __init__(self, folder: Path, criu: str) -> None:
        super().__init__(folder, criu)
        self.uid, self.id = str(uuid.uuid4()), secrets.token_hex(32)
        self.bundle = folder / "agent-bundle"
        self.root = self.bundle / "root"
        for name in ("root", "upper", "work"):
            (self.bundle / name).mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={self.bundle}/upper,workdir={self.bundle}/work"
        run("mount", "-t", "overlay", "-o", layers, "overlay", self.root)
        self.output = -1

    def start(self, *options: str) -> None:
        program = (sys.executable, "-m", "jupyterhub_gpu_reclaim.node", PLACEMENT)
        words = [*program, *self.words()[1:], *options]
        (self.bundle / "config.json").write_text(json.dumps(self._config(words)))
        self.output, theirs = os.pipe()
        os.set_blocking(self.output, False)
        try:
            done = subprocess.run(
                [
                    *("runc", "--root", f"{self.folder}/runc", "create"),
                    *("--bundle", str(self.bundle)),
                    *("--pid-file", f"{self.bundle}/pid", self.id),
                ],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                check=False,
            )
        finally:
            os.close(theirs)
        assert done.returncode == 0, self.written()
        self.pid = int((self.bundle / "pid").read_text())
        self._runc("start", self.id)
        wait_for(self._answers)

    def _answers(self) -> bool:
        assert processes.start_time(self.pid), self.written()
        return self.is_healthy()

    def written(self) -> str:
        said = b""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.output, 1 << 16):
                said += block
        return said.decode()

    def output_has_ended(self) -> bool:
        """Whether nobody holds the writing end any more."""
        try:
            while os.read(self.output, 1 << 16):
                pass
        except BlockingIOError:
            return False
        return True

    def end_container(self) -> None:
        """What is left in its control group ends, as a runtime does it."""
        self._runc("delete", "--force", self.id)

    def remove(self) -> None:
        with contextlib.suppress(AssertionError):
            self.end_container()
        if self.output >= 0:
            os.close(self.output)
        run("umount", "-l", self.root)
        leave_groups(self.uid)

    def _runc(self, *words: object) -> None:
        run("runc", "--root", f"{self.folder}/runc", *words)

    def _config(self, words: list[str]) -> dict:
        _, container = helm.agents(helm.LEAST)
        context = container["securityContext"]["capabilities"]
        # No more than the test's own root has.
        status = Path("/proc/self/status").read_text()
        had = int(status.partition("CapEff:")[2].split()[0], 16)
        rights = [f"CAP_{one}" for one in context["add"]]
        if not had >> 24 & 1:
            rights.remove("CAP_SYS_RESOURCE")
        sets = ("bounding", "effective", "permitted")
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.root)},
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": words,
                "cwd": str(Path(__file__).parents[2]),
                "env": [
                    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                    f"{state_folder.VARIABLE}={self.folder}/state",
                ],
                "capabilities": dict.fromkeys(sets, rights),
            },
            "mounts": [
                mount("proc", "/proc", "proc"),
                mount("tmpfs", "/dev", "tmpfs", "nosuid", "mode=755", "size=64m"),
                mount("devpts", "/dev/pts", "devpts", *DEVPTS),
                mount("sysfs", "/sys", "sysfs", "ro"),
                mount("bind", str(self.folder), str(self.folder), "bind"),
            ],
            "linux": {
                "namespaces": [
                    {"type": kind} for kind in ("ipc", "uts", "mount", "cgroup")
                ],
                "cgroupsPath": f"/kubepods/burstable/pod{self.uid}/{self.id}",
            },
        }
