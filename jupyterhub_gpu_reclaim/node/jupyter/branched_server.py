"""A fresh Jupyter server in the place of the one that a branch was saved with.

The agent has that process execute ``python -c`` with this text (``workflows/branch``):
it has the place, the name and the login of its new server then, and the kernels below
it are its children as before. What is executed runs the same command as the old server,
with one difference: it begins with those kernels, under their old ids, and with the
notebooks that they belong to. It knows them by their command lines, which name their
connection files, and never touches these: the session that they were branched from
may use them.

``GPU_RECLAIM_PORTS`` says which ports are others now, as JSON. Standard library and
``jupyter_server`` (2.0 or later) only: it runs in the user's image.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PORTS = "GPU_RECLAIM_PORTS"
#: For how long an answer of a kernel to its first question is waited for, in seconds.
ASK_SECONDS = 60.0
#: Forks of IPython's kernel send what they print to a port of it, by its number.
MOVE_FORKS = """
def moved(ports={}):
    thread = getattr(get_ipython().kernel, "iopub_thread", None)
    port = getattr(thread, "_pipe_port", None)
    if str(port) in ports:
        thread._pipe_port = ports[str(port)]
moved()
del moved
"""
NAMES_FILE = re.compile(r"/[^\0]*/kernel-([^/\0]+)\.json")


class Kernel(subprocess.Popen[bytes]):
    """A child that the former program of this process has started."""

    def __init__(self, pid: int, connection: dict[str, Any]) -> None:
        self.pid = pid
        self.connection = connection
        self.args: list[str] = []
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()

    @property
    def notebook(self) -> str:
        """The file that it was started for; empty: none."""
        words = Path(f"/proc/{self.pid}/environ").read_text("utf-8", "replace")
        found = re.search(r"(?:^|\0)JPY_SESSION_NAME=([^\0]+)", words)
        return found[1] if found else ""


def children() -> list[int]:
    """The children of this process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found.append(int(stat.parent.name))
    return found


def kernels(ports: dict[str, int]) -> dict[str, Kernel]:
    """The kernels among them by their ids, with where they listen now."""
    found = {}
    for pid in children():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
            named = NAMES_FILE.search(words)
            if named is None:
                continue
            connection = json.loads(Path(named[0]).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        for name, port in connection.items():
            if name.endswith("_port"):
                connection[name] = ports.get(str(port), port)
        found[named[1]] = Kernel(pid, connection)
    return found


def take_over(found: dict[str, Kernel]) -> None:
    """Have the next start of one of these ids begin with what runs."""
    provisioning: Any = importlib.import_module("jupyter_client.provisioning")
    patched = provisioning.LocalProvisioner
    prepare, launch = patched.pre_launch, patched.launch_kernel

    async def pre_launch(self: Any, **more: Any) -> dict[str, Any]:
        kernel = found.get(self.kernel_id)
        if kernel is None:
            return dict(await prepare(self, **more))
        manager = self.parent
        name = f"branch-{os.getpid()}-{self.kernel_id}.json"
        manager.connection_file = str(Path(manager.connection_file).with_name(name))
        manager.load_connection_info(kernel.connection)
        manager.write_connection_file()
        self.connection_info = manager.get_connection_info()
        base = provisioning.KernelProvisionerBase
        return dict(await base.pre_launch(self, cmd=[], **more))

    async def launch_kernel(self: Any, cmd: list[str], **more: Any) -> Any:
        kernel = found.pop(self.kernel_id, None)
        if kernel is None:
            return await launch(self, cmd, **more)
        self.process, self.pid, self.pgid = kernel, kernel.pid, os.getpgid(kernel.pid)
        return self.connection_info

    patched.pre_launch, patched.launch_kernel = pre_launch, launch_kernel


async def begin(app: Any, found: dict[str, Kernel], ports: dict[str, int]) -> None:
    """Let the server have them, and the notebooks that they belong to."""
    for id_, kernel in list(found.items()):
        named, notebook = kernel.connection.get("kernel_name") or None, kernel.notebook
        await app.kernel_manager.start_kernel(kernel_id=id_, kernel_name=named)
        if Path(notebook).is_relative_to(app.root_dir):
            path = Path(notebook).relative_to(app.root_dir)
            await app.session_manager.create_session(
                path=str(path),
                name=path.name,
                type="notebook",
                kernel_name=named,
                kernel_id=id_,
            )
        # Its state is unknown until it has said something.
        client = app.kernel_manager.get_kernel(id_).client()
        client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        client.kernel_info()
        if kernel.connection.get("kernel_name", "").startswith("python") and ports:
            client.execute(MOVE_FORKS.format(ports), silent=True, store_history=False)
        asyncio.get_running_loop().call_later(ASK_SECONDS, client.stop_channels)


def prepare() -> None:
    """Have the server that is about to run begin with the kernels that are there."""
    ports = json.loads(os.environ.pop(PORTS, "{}"))
    found = kernels(ports)
    take_over(found)
    patched: Any = importlib.import_module("jupyter_server.serverapp").ServerApp
    made = patched.init_webapp

    def init_webapp(app: Any) -> None:
        made(app)
        loop = importlib.import_module("tornado.ioloop").IOLoop.current()
        loop.add_callback(begin, app, found, ports)

    patched.init_webapp = init_webapp


def main(words: list[str]) -> None:
    """Run a command of Python's: ``-m MODULE``, ``-c TEXT`` or ``SCRIPT``, ``ARG…``."""
    prepare()
    sys.argv = words
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = [words[0], *words[2:]]
        program = compile(words[1], "<string>", "exec")
        exec(program, {"__name__": "__main__"})  # noqa: S102 - the server's own
    else:
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
