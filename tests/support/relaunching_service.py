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

from tests.support.unix_server import UnixServer

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
        return find_init(self.folder, user, server)

    def capture(self, user: str, server: str = "") -> dict[str, Any]:
        """Freeze a session and remember how it was started."""
        init = self.init(user, server)
        root = children(init)[0]
        stopped = tree(root)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        _wait_stopped(stopped)
        reaper = "session_init" in _read(root, "cmdline")
        program = children(root)[0] if reaper else root
        environ = dict(
            entry.split("=", 1)
            for entry in _read(program, "environ").split("\0")
            if "=" in entry
        )
        command = _read(program, "cmdline").rstrip("\0").split("\0")
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

    def thaw(self, user: str, server: str = "") -> None:
        """Let a captured session go on; its checkpoint is discarded."""
        for pid in tree(children(self.init(user, server))[0]):
            os.kill(pid, signal.SIGCONT)
        self.captured.discard((user, server))
        self.saved.pop((user, server), None)

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
            until = time.monotonic() + 60
            while not children(init) and time.monotonic() < until:
                time.sleep(0.02)
            root = children(init)[0]
            inner = int(_status(root, "NSpid").split()[-1])
            _sigqueue(init, signal.SIGUSR1, inner)
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
            init = self.init(*key)
            os.kill(init, signal.SIGKILL)
            until = time.monotonic() + 60
            while _alive(init) and time.monotonic() < until:
                time.sleep(0.02)
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


class _Handler(BaseHTTPRequestHandler):
    service: RelaunchingService

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.path.rpartition("/")[2]
        try:
            status, answer = self.service.answer(call, body)
        except (LookupError, OSError) as error:
            status, answer = 409, {"code": "internal", "message": repr(error)}
        if call in self.service.unanswered:
            return
        self._send(status, b"" if answer is None else json.dumps(answer).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)

    def do_GET(self) -> None:
        user, server = self.path.partition("?")[0].split("/")[-2:]
        key = (user, "" if server == "-" else server)
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for event in self.service.events(key):
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _key(body: dict[str, Any]) -> Key:
    key = body.get("key", body)
    if isinstance(key, dict):
        return key["user"], key.get("server", "")
    return tuple(key)


# --- processes ------------------------------------------------------------------------


def find_init(folder: Path, user: str, server: str = "") -> int:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        words = _read(int(entry.name), "cmdline").split("\0")
        if not any(word.endswith("session_init.py") for word in words[:5]):
            continue
        if f"--user={user}" not in words or f"--server={server}" not in words:
            continue
        if str(folder) not in _read(int(entry.name), "environ"):
            continue
        first = _status(int(entry.name), "NSpid").split()[-1:] == ["1"]
        if first and _alive(int(entry.name)):
            found.append(int(entry.name))
    if not found:
        raise LookupError(f"no init of {user}/{server}")
    return max(found)


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def tree(pid: int) -> list[int]:
    return [pid, *(each for child in children(pid) for each in tree(child))]


def _wait_stopped(pids: list[int]) -> None:
    """As an agent does: on a busy machine a signal takes its time."""
    until = time.monotonic() + 30
    while any(_status(pid, "State")[:1] not in {"T", "t", "Z", ""} for pid in pids):
        if time.monotonic() > until:
            raise TimeoutError(f"not stopped: {pids}")
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    return _status(pid, "State")[:1] not in {"", "Z", "X"}


def _status(pid: int, name: str) -> str:
    for line in _read(pid, "status").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _sigqueue(pid: int, number: int, value: int) -> None:
    class Value(ctypes.Union):
        _fields_ = [("number", ctypes.c_int), ("pointer", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sigqueue(pid, number, Value(number=value)):
        raise OSError(ctypes.get_errno(), "sigqueue")
