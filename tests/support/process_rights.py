"""The rights of the shipped agents, and of the sessions that Hubs of each kind start.

Both are read from what is shipped (the unit, the DaemonSet), so that a test runs with
exactly these and not with those of whoever runs the tests. Where the tests' own root
lacks a capability (CAP_SYS_RESOURCE, in many containers) nobody can be given it: it is
left out everywhere, and of such an agent CRIU has the tests' shim
(``tests/checkpoint/test_other_user.py``).
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyterhub_gpu_reclaim.linux import capabilities, procfs
from tests.support import helm
from tests.support.agent import Agent

ETC = Path(__file__).parents[2] / "etc"
UNIT = ETC / "systemd" / "jupyterhub-gpu-reclaim-agent.service"
#: The lines of TLJH's ``jupyterhub.service`` (2.0) that concern rights.
TLJH_UNIT = """
[Service]
User=root
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
"""
ALL = (1 << len(capabilities.NAMES)) - 1
#: What systemd 255 and 257 leave inheritable of a unit with User= and a filter.
_LEFT_BY_SYSTEMD = ("SETPCAP", "SYS_ADMIN")
#: systemd.exec(5): what each of these takes from the bounding set.
_TAKES = {
    "PrivateDevices": ("MKNOD", "SYS_RAWIO"),
    "ProtectKernelModules": ("SYS_MODULE",),
    "ProtectKernelLogs": ("SYSLOG",),
    "ProtectClock": ("SYS_TIME", "WAKE_ALARM"),
}
_FILTERED = {*_TAKES, "ProtectKernelTunables", "SystemCallFilter"}


def bits(*names: str) -> int:
    return sum(1 << capabilities.NAMES.index(one.removeprefix("CAP_")) for one in names)


@dataclass(frozen=True)
class ProcessRights:
    bounding: int = ALL
    inheritable: int = 0
    no_new_privileges: bool = False

    def words(self) -> list[str]:
        """The command that runs another one with these rights."""
        here = int(procfs.status(os.getpid())["CapBnd"], 16)
        words = ["setpriv", "--bounding-set", _written(self.bounding & here)]
        words += ["--inh-caps", _written(self.inheritable & here)]
        return [*words, *(["--no-new-privs"] if self.no_new_privileges else [])]


def _written(some: int) -> str:
    each = (f"+cap_{n}" for n in range(some.bit_length()) if some >> n & 1)
    return ",".join(["-all", *each])


def of_unit(text: str) -> ProcessRights:
    lines = [line.strip() for line in text.splitlines() if "=" in line]
    values = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    yes = {name for name, value in values.items() if value in {"yes", "true", "1"}}
    bounding = ALL
    for line in lines:
        name, _, value = line.partition("=")
        if name == "CapabilityBoundingSet":
            named = bits(*value.removeprefix("~").split())
            bounding &= ~named if value.startswith("~") else named
    for name in _TAKES.keys() & yes:
        bounding &= ~bits(*_TAKES[name])
    left = bool(values.get("User")) and bool(_FILTERED & yes)
    return ProcessRights(
        bounding, bits(*_LEFT_BY_SYSTEMD) if left else 0, "NoNewPrivileges" in yes
    )


def of_chart() -> ProcessRights:
    """What a runtime gives the DaemonSet's container."""
    _, container = helm.agents(helm.LEAST)
    return of_container(container["securityContext"])


def of_container(context: dict[str, Any]) -> ProcessRights:
    """What a runtime gives a container of that ``securityContext``."""
    named = context.get("capabilities", {})
    given = 0 if "ALL" in named.get("drop", ()) else DOCKERS_DEFAULT
    given |= bits(*named.get("add", ()))
    escalates = context.get("allowPrivilegeEscalation", True)
    return ProcessRights(given, 0, not escalates)


#: What Docker, containerd and CRI-O leave to a container's root.
DOCKERS_DEFAULT = bits(
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID"),
    *("SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL"),
    "AUDIT_WRITE",
)
#: The agent where root lacks CAP_SYS_RESOURCE.
SHIMMED = """
import sys
from pathlib import Path
from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.linux import capabilities
from jupyterhub_gpu_reclaim.node.__main__ import main
from tests.support.attacker import criu_for_any_user
shimmed = criu_for_any_user(binary.locate(Path(sys.argv.pop(1))), Path(sys.argv.pop(1)))
binary.locate = lambda _: shimmed
capabilities.has = lambda _: True
main()
"""


class AgentOf(Agent):
    """The agent's program, as a command of its own with given rights."""

    def __init__(self, folder: Path, criu: str, rights: ProcessRights) -> None:
        super().__init__(folder, criu)
        self._rights = rights

    def launch(self, words: list[str], log: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "jupyterhub_gpu_reclaim.node"]
        if not capabilities.has("SYS_RESOURCE"):
            command = [sys.executable, "-c", SHIMMED, self.criu, str(self.folder)]
        return subprocess.Popen(
            [*self._rights.words(), *command, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environment,
            start_new_session=True,
        )
