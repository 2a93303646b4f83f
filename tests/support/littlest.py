"""A machine with The Littlest JupyterHub, as far as one goes without systemd.

Run as the second process of mount and pid namespaces of its own, by
``tests/e2e/test_littlest.py``: users are made in copies of ``/etc`` and ``/home``. What
is TLJH's own: its installer's steps for plugins, configuration, administrators and
groups; ``tljh-config``; ``jupyterhub_config.py``, started as its unit does, and the
making of users. What is not: conda and apt; ``transient_units`` stands in for systemd
and configurable-http-proxy for traefik.

Prints what it saw, as JSON.
"""

import grp
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests

from demo import processes
from demo.admin import Admin
from demo.stack import Stack
from demo.user import Kernel, User
from jupyterhub_gpu_reclaim.linux import capabilities
from tests.support import light_server, transient_units
from tests.support.hub import proxy_command, wait_until

#: The installer's steps, and ``tljh-config`` for each setting.
INSTALLER = """
import json, sys
from tljh import config, installer, user
installer.ensure_config_yaml(installer.setup_plugins())
installer.ensure_admins([["admin"]])
installer.ensure_usergroups()
user.ensure_group("students")
for key, value in {
    "auth.type": "dummy",
    "limits.memory": "1G",
    "limits.cpu": "1.5",
    "gpu_reclaim.idle_after": "0",
    "gpu_reclaim.min_age": "0",
    "gpu_reclaim.cool_down": "0",
    **json.loads(sys.argv[1]),
}.items():
    config.main(["set", key, value])
for key, value in (
    ("users.admin", "boss"),
    ("users.allowed", "ada"),
    ("users.allowed", "eve"),
    ("users.extra_user_groups.students", "ada"),
):
    config.main(["add-item", key, value])
"""
#: Where root lacks CAP_SYS_RESOURCE (``tests/checkpoint/test_other_user.py``).
AGENT = """
import sys
from pathlib import Path
from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.linux import capabilities
from jupyterhub_gpu_reclaim.node.__main__ import main
from tests.support.attacker import criu_for_any_user
shimmed = criu_for_any_user(binary.locate(Path(sys.argv.pop(1))), Path.cwd())
binary.locate = lambda _: shimmed
capabilities.has = lambda _: True
main()
"""
#: In ``jupyterhub_config.d``: read after the plugins, and it replaces lists.
LATER = """
c.JupyterHub.services = [{{"name": "grades", "api_token": "{password:x<32}"}}]
c.JupyterHub.jinja_environment_options = {{}}
c.JupyterHub.proxy_class = "configurable-http-proxy"
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_api_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.SessionProcessSpawner.realm = "{folder}"
"""
#: As systemd's PrivateTmp= and PrivateDevices= do with other folders.
UNIT = 'mount -t tmpfs none /mnt && exec "$@"'
#: What a user runs in a kernel to see how they are placed.
LOOK = """
import getpass, json, os, pathlib, re
status = pathlib.Path("/proc/self/status").read_text()
def limit(controller, *files):
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        if controller in names.split(",") or not names:
            for file in files:
                found = pathlib.Path(f"/sys/fs/cgroup/{names}{group}/{file}")
                if found.exists():
                    return int(found.read_text().split()[0])
print(json.dumps({
    "user": getpass.getuser(),
    "uid": os.getuid(),
    "groups": sorted(os.getgroups()),
    "home": os.environ["HOME"],
    "shell": os.environ["SHELL"],
    "path": os.environ["PATH"].split(":")[0],
    "no_new_privileges": re.search(r"NoNewPrivs:\\t(.)", status)[1],
    "memory": limit("memory", "memory.limit_in_bytes", "memory.max"),
    "cpu": limit("cpu", "cpu.cfs_quota_us", "cpu.max"),
    "machine": os.listdir("/mnt"),
}))
"""


class LittlestStack(Stack):
    """TLJH's Hub, our agent."""

    def __init__(self, folder: Path, hub_env: Path) -> None:
        super().__init__(folder)
        self.prefix = folder / "tljh"
        self.python = hub_env / "bin/python"
        #: Whether the service works: it waits where a setting is wrong.
        self.suspends = True
        self.password = self.settings["password"] = "open sesame"

    def install(self) -> None:
        """What TLJH's installer does with Python alone, and its administrator."""
        users = self.prefix / "user/bin"
        users.mkdir(parents=True)
        (self.prefix / "state/rules").mkdir(parents=True)
        server = users / "jupyterhub-singleuser"
        server.write_text(f'#!/bin/sh\nexec {" ".join(light_server.COMMAND)} "$@"\n')
        server.chmod(0o755)
        (self.folder / "bin").mkdir()
        for program in ("systemctl", "systemd-run"):
            (self.folder / "bin" / program).write_text(
                f"#!{sys.executable}\n{Path(transient_units.__file__).read_text()}"
            )
            (self.folder / "bin" / program).chmod(0o755)
        values = {
            "auth.DummyAuthenticator.password": self.password,
            "gpu_reclaim.agent": f"unix:{self.agent_socket}",
            "gpu_reclaim.agent_token_file": f"{self.folder}/agent.token",
            "gpu_reclaim.state_dir": f"{self.folder}/service",
            "gpu_reclaim.service_port": str(self.settings["service_port"]),
        }
        self._python("-c", INSTALLER, json.dumps(values))
        self.configure("later", LATER.format(**self.settings, proxy=proxy_command()))

    def configure(self, name: str, lines: str) -> None:
        """Write a file of ``jupyterhub_config.d``; it holds from the next start on."""
        folder = self.prefix / "config/jupyterhub_config.d"
        (folder / f"{name}.py").write_text(f"c = get_config()\n{lines}")

    def _run(self, part: str, command: list[str], env: dict[str, str]) -> None:
        if part == "agent" and not capabilities.has("SYS_RESOURCE"):
            command = [sys.executable, "-c", AGENT, str(self.criu), *command[1:]]
        super()._run(part, command, env)

    def start_hub(self) -> None:
        [config] = self.python.parents[1].glob("lib/*/site-packages/tljh")
        jupyterhub = [self.python, "-m", "jupyterhub", "--upgrade-db", "-f"]
        unit = ["unshare", "--mount", "--", "sh", "-c", UNIT, "unit"]
        self._run(
            "hub",
            list(map(str, [*unit, *jupyterhub, config / "jupyterhub_config.py"])),
            env=self._env(),
        )
        self._until("hub", self._hub_answers, seconds=120)

    def _hub_answers(self) -> bool:
        if self.suspends:
            return super()._hub_answers()
        return requests.get(f"{self.url}/hub/health", timeout=60).ok

    def restart_hub(self) -> None:
        self.end("hub", signal.SIGTERM)
        self.start_hub()

    def _python(self, *words: str) -> None:
        subprocess.run([self.python, *words], env=self._env(), check=True)

    def _env(self) -> dict[str, str]:
        node = Path(shutil.which("node") or "/").parent
        path = f"{self.folder / 'bin'}:{self.python.parent}:{node}"
        return {
            **processes.mark(self.folder),
            "TLJH_INSTALL_PREFIX": str(self.prefix),
            "PATH": f"{path}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }


def groups_of(user: str) -> list[str]:
    return [group.gr_name for group in grp.getgrall() if user in group.gr_mem]


def look(kernel: Kernel) -> dict[str, Any]:
    seen = kernel.run(LOOK)
    return dict(json.loads(seen.text or json.dumps({"error": seen.error})))


def units_of_before(stack: LittlestStack) -> dict[str, Any]:
    """A server that TLJH's own spawner has started, when ours takes its place."""
    stack.configure("limit", "c.SystemdSpawner.slice = 'users.slice'\n")
    stack.suspends = False
    seen: dict[str, Any] = {}
    with stack:
        eve = User(stack.url, "eve", stack.password)
        eve.login()
        eve.start_server()
        unit = transient_units.UNITS / "jupyter-eve"
        kernel = eve.server().start_kernel()
        with kernel:
            pid = kernel.run("import os; x = 42; print(os.getpid())").text
        seen["is a unit"] = unit.exists()
        seen["log"] = stack.log("hub")
        stack.configure("limit", "")
        stack.suspends = True
        stack.restart_hub()
        eve.visit("/user/eve/lab")
        with kernel:
            told = kernel.run("import os; print(x, os.getpid())").text
        seen["goes on"] = unit.exists() and told == f"42 {pid}"
        eve.hub("DELETE", "users/eve/server")
        wait_until(lambda: not unit.exists(), 30)
        eve.start_server()
        seen["is a session"] = not unit.exists() and [
            tree["key"]["user"] for tree in stack.trees()
        ]
    return seen


def scenario(stack: LittlestStack) -> dict[str, Any]:
    """Log in, suspend, resume, restart of the Hub."""
    seen: dict[str, Any] = {}
    admin = Admin(stack)
    seen["services"] = sorted(admin.user.hub("GET", "services").json())
    ada = User(stack.url, "ada", stack.password)
    ada.login()
    ada.start_server()
    entry = pwd.getpwnam("jupyter-ada")
    seen["made"] = {
        "uid": entry.pw_uid,
        "groups": sorted(groups_of(entry.pw_name)),
        "home_mode": oct(Path(entry.pw_dir).stat().st_mode & 0o777),
    }
    kernel = ada.server().start_kernel()
    with kernel:
        seen["placed"] = look(kernel)
        pid = kernel.run("import os; x = 42; print(os.getpid())").text

    def back(when: str) -> None:
        ada.visit("/user/ada/lab")
        with kernel:
            told = kernel.run("import os; print(x, os.getpid())").text
            seen[when] = {"same": told == f"42 {pid}", **look(kernel)}

    stack.restart_hub()
    back("restarted")
    admin.suspend("ada")
    seen["left"] = [t for t in stack.trees() if t["key"]["user"] == "ada"]
    back("resumed")
    admin.wait("ada", phase="running")
    admin.suspend("ada")
    stack.restart_hub()
    back("resumed after a restart")
    boss = User(stack.url, "boss", stack.password)
    boss.login()
    boss.start_server()
    with boss.server().start_kernel() as of_boss:
        seen["boss"] = look(of_boss)
    seen["admins"] = grp.getgrnam("jupyterhub-admins").gr_mem
    return seen


def main() -> None:
    folder, hub_env = map(Path, sys.argv[1:])
    folder.mkdir()  # users start what lies in it
    stack = LittlestStack(folder, hub_env)
    stack.install()
    try:
        before = units_of_before(stack)
        with stack:
            seen = scenario(stack)
    except BaseException:
        sys.stderr.write(stack.log("hub")[-6000:] + stack.log("agent")[-2000:])
        raise
    seen["before"] = before
    print(json.dumps(seen))


if __name__ == "__main__":
    os.umask(0o022)
    main()
