"""A double of the service that brings sessions back by starting them anew.

Its fault: memory is lost. Everything that the Hub and the spawner see is as in a real
resume: the old token, the old port, a tree under a holding init, progress, refusals.
So the Hub's side can be tested in seconds and without CRIU. Attributes steer it.
"""

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.linux import processes, procfs
from jupyterhub_gpu_reclaim.node.sessions.placements import LocalPlacements
from jupyterhub_gpu_reclaim.session_init import session_init
from tests.support.hub import HubUnderTest, wait_until
from tests.support.unix_server import Answers, UnixServer

TOKEN = "spawner-token-of-the-tests"
Key = tuple[str, str]


class RelaunchingService:
    """Speaks the spawner API of ``docs/explanation/architecture.md``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.saved: dict[Key, dict[str, Any]] = {}  #: identity and command by session
        self.captured: set[Key] = set()
        self.plan: dict[str, Any] | None = None  #: answer every plan-start with this
        self.renew_login = False  #: an administrator has ordered it
        self.fail_restore: dict[str, Any] | None = None
        self.hold_restore = threading.Event()  #: a restore waits for it
        self.hold_restore.set()
        self.hold_release = threading.Event()
        self.hold_release.set()
        self.late: dict[str, float] = {}  #: seconds until a call is answered
        self.unanswered: set[str] = set()  #: calls whose answer is lost
        self.restored: dict[Key, threading.Event] = {}
        self.placed: dict[Key, str] = {}  #: incarnations that were told of
        self.token_file = folder / "spawner.token"
        self.token_file.write_text(TOKEN)
        self.path = folder / "spawner.sock"
        self._server: UnixServer | None = None
        self.up()

    @property
    def config(self) -> str:
        """Lines for the Hub's configuration."""
        return (
            "\nc.JupyterHub.spawner_class = 'gpu-reclaim-local'"
            f"\nc.ReclaimMixin.reclaim_service = 'unix:{self.path}'"
            f"\nc.ReclaimMixin.reclaim_token_file = {str(self.token_file)!r}"
            "\nfrom jupyterhub_gpu_reclaim.hub import pages\npages.add(c)\n"
        )

    def up(self) -> None:
        """Listen (again, at the same socket)."""
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = UnixServer(self.path, handler)

    def down(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold_restore.set()
        self.hold_release.set()
        self.down()

    def called(self, name: str) -> int:
        return sum(1 for call, _ in self.calls if call == name)

    # --- what a real service would do through the agent ------------------------------

    def init(self, user: str, server: str = "") -> int:
        """Pid of the session's init; LookupError when there is none."""
        found = [
            session.init_pid
            for session in LocalPlacements(str(self.folder)).list()
            if session.key == SessionKey(user, server)
        ]
        if not found:
            raise LookupError(f"no init of {user}/{server}")
        return max(found)

    def tree(self, user: str, server: str = "") -> Any:
        return processes.snapshot(self.init(user, server))

    def capture(self, user: str, server: str = "") -> dict[str, Any]:
        """Freeze a session and remember how it was started."""
        tree = self.tree(user, server)
        for process in tree.processes:
            os.kill(process.pid, signal.SIGSTOP)
        processes.wait_stopped(tree.init.pid, tree.init.start_time, timeout=30)
        program = tree.root.pid
        if "session_init" in procfs.text(program, "cmdline"):  # the reaper
            program = tree.server.pid
        environ = dict(
            entry.split("=", 1)
            for entry in procfs.text(program, "environ").split("\0")
            if "=" in entry
        )
        command = procfs.text(program, "cmdline").rstrip("\0").split("\0")
        url = environ["JUPYTERHUB_SERVICE_URL"]
        saved = {
            "checkpoint": f"{user}-{time.monotonic_ns()}",
            "environ": environ,
            "command": command,
            "cwd": str(Path(f"/proc/{program}/cwd").readlink()),
            "identity": {
                "api_token": environ["JUPYTERHUB_API_TOKEN"],
                "port": int(url.rpartition(":")[2].partition("/")[0]),
            },
        }
        self.saved[user, server] = saved
        self.captured.add((user, server))
        return saved

    def suspend(self, hub: HubUnderTest, user: str, server: str = "") -> None:
        self.capture(user, server)
        hub.stop_server(user, server)

    def thaw(self, user: str, server: str = "") -> None:
        """Let a captured session go on; its checkpoint is discarded."""
        for process in self.tree(user, server).processes:
            os.kill(process.pid, signal.SIGCONT)
        self.put_aside(user, server)

    def put_aside(self, user: str, server: str = "") -> Any:
        """Have nothing saved of it any more; what that was."""
        self.captured.discard((user, server))
        return self.saved.pop((user, server), None)

    def reset(self) -> None:
        """Forget everything and answer again; for tests that share one double."""
        self.hold_restore.set()
        self.hold_release.set()
        self.plan = self.fail_restore = None
        self.renew_login = False
        self.late.clear()
        self.unanswered.clear()
        self.saved.clear()
        self.captured.clear()
        self.calls.clear()
        if self._server is None:
            self.up()

    def restore(self, key: Key) -> None:
        """Bring it back, or not, and end the progress."""
        self.hold_restore.wait(60)
        if self.fail_restore is None:
            with contextlib.suppress(LookupError, subprocess.SubprocessError):
                self._relaunch(key)
        self.restored[key].set()

    def _relaunch(self, key: Key) -> None:
        """Start the suspended session's program again under the holding init."""
        if key in self.saved:
            saved, init = self.saved[key], self.init(*key)
            words = shlex.join(saved["command"])
            script = f"exec >/dev/null 2>&1 </dev/null; setsid --fork {words}"
            enter = f"nsenter --target={init} --pid --mount --ipc --uts sh -c".split()
            subprocess.run(
                [*enter, script],
                env=saved["environ"],
                cwd=saved["cwd"],
                check=True,
                timeout=20,
            )
            wait_until(lambda: processes.has_children(init), 60)
            root = ctypes.c_void_p(self.tree(*key).root.ns_pid)
            ctypes.CDLL(None).sigqueue(init, session_init.ROOT_NAMED, root)
            self.captured.discard(key)

    # --- the calls -------------------------------------------------------------------

    def answer(self, call: str, body: dict[str, Any]) -> tuple[int, Any]:
        key = _key(body)
        time.sleep(self.late.get(call, 0))
        self.calls.append((call, body))
        if call == "plan-start":
            if self.plan is not None:
                return 200, self.plan
            saved = self.saved.get(key)
            if saved is None:
                return 200, {"action": "cold"}
            return 200, {
                "action": "restore",
                "checkpoint": saved["checkpoint"],
                "identity": saved["identity"],
                "renew_login": self.renew_login,
            }
        if call == "plan-stop":
            if key in self.captured:
                saved = self.saved[key]
                return 200, {"action": "release", "checkpoint": saved["checkpoint"]}
            return 200, {"action": "stop"}
        if call == "placed" and body.get("checkpoint"):
            self.restored[key] = threading.Event()
            self.placed[key] = body["incarnation"]
            threading.Thread(target=self.restore, args=(key,), daemon=True).start()
            return 202, None
        if call == "release":
            self.hold_release.wait(60)
            init = self.tree(*key).init
            processes.kill_session(init.pid, init.start_time, timeout=60)
        if call == "forget":
            self.saved.pop(_key({"key": body}), None)
        return 204, None

    def events(self, key: Key) -> Any:
        step = {"step": "memory", "title": "Reading the memory"}
        yield {"step": {**step, "state": "begun", "total_bytes": 4_000_000_000}}
        self.restored[key].wait(60)
        if self.fail_restore is not None:
            yield {"failure": self.fail_restore}
            return
        done = {"state": "done", "bytes": 4_000_000_000, "total_bytes": 4_000_000_000}
        yield {"step": {**step, **done, "seconds": 1.5}}
        yield {
            "tree": {
                "incarnation": self.placed[key],
                "key": {"user": key[0], "server": key[1]},
                "state": "running",
                "init_pid": 1,
            }
        }


class _Handler(Answers, BaseHTTPRequestHandler):
    service: RelaunchingService

    def do_POST(self) -> None:
        body = json.loads(self.body())
        call = self.path.rpartition("/")[2]
        try:
            status, answer = self.service.answer(call, body)
        except (LookupError, OSError) as error:
            status, answer = 409, {"code": "internal", "message": repr(error)}
        if call in self.service.unanswered:
            return
        self.answer(status, b"" if answer is None else json.dumps(answer).encode())

    def do_GET(self) -> None:
        user, server = self.path.partition("?")[0].split("/")[-2:]
        key = (user, "" if server == "-" else server)
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for event in self.service.events(key):
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()


def _key(body: dict[str, Any]) -> Key:
    key = body.get("key", body)
    if isinstance(key, dict):
        return key["user"], key.get("server", "")
    return tuple(key)
