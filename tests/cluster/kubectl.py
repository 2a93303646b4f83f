"""``kubectl`` for tests: each call has a limit, and tells why it failed."""

import contextlib
import json
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


class Kubectl:
    def run(self, *words: str, give: str = "", seconds: float = 60) -> str:
        command = ["kubectl", f"--request-timeout={seconds:.0f}s", *words]
        try:
            done = subprocess.run(
                command,
                input=give,
                capture_output=True,
                text=True,
                timeout=seconds + 10,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s: {command}") from None
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def tried(self, *words: str, seconds: float = 60) -> str:
        """Its output, or why there is none; for what may be gone already."""
        try:
            return self.run(*words, seconds=seconds)
        except AssertionError as error:
            return str(error)

    def json(self, *words: str) -> Any:
        found = json.loads(self.run(*words, "-o", "json"))
        return found.get("items", found)

    def apply(self, objects: list[dict[str, Any]]) -> None:
        self.run("apply", "-f", "-", give=json.dumps(_list(objects)))

    def nodes(self) -> list[dict[str, Any]]:
        """Those that are ready and take pods."""
        return [
            node
            for node in self.json("get", "nodes")
            if not node["spec"].get("unschedulable")
            and not any(
                taint["effect"] in {"NoSchedule", "NoExecute"}
                for taint in node["spec"].get("taints", ())
                if taint["key"] != "nvidia.com/gpu"
            )
            and any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in node["status"]["conditions"]
            )
        ]


class Forward:
    """A port of a service of the cluster on 127.0.0.1; made again when it breaks.

    kubectl ends as soon as one of its connections is reset, as an open tab's is when
    its session is suspended.
    """

    def __init__(self, namespace: str, service: str, port: int) -> None:
        self._target = ["-n", namespace, "port-forward", f"service/{service}"]
        self._there = port
        self._here = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """Where it is; the same for as long as it lives."""
        if not self._here:
            self._open()
            threading.Thread(target=self._keep, daemon=True).start()
        return f"http://127.0.0.1:{self._here}"

    def _keep(self) -> None:
        """Open it again whenever it has ended."""
        while not self._closed.wait(0.2):
            if self._process is None or self._process.poll() is not None:
                with contextlib.suppress(AssertionError):
                    self._open()

    def _open(self) -> None:
        self._end()
        port = f"{self._here or ''}:{self._there}"
        # A file: it says a line for every connection, and a full pipe would stop it.
        with tempfile.NamedTemporaryFile("w+") as told:
            self._process = subprocess.Popen(
                ["kubectl", *self._target, port], stdout=told, stderr=told
            )
            until = time.monotonic() + 30
            while time.monotonic() < until and self._process.poll() is None:
                text = Path(told.name).read_text()
                if found := re.search(r"127\.0\.0\.1:(\d+) ->", text):
                    self._here = int(found[1])
                    return
                time.sleep(0.1)
            raise AssertionError(f"no port-forward: {Path(told.name).read_text()}")

    def close(self) -> None:
        self._closed.set()
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


def _list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": objects}
