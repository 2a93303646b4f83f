"""Our command line beside a service in this process: in a thread, or on a terminal.

Used by the tests of ``cli_sessions``.
"""

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import time

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.common.models import SessionKey, Usage


def unused(seconds: float, **more: object) -> Usage:
    now = time.time()
    return Usage(
        at=now,
        watched=9999.0,
        sample_age=1.0,
        last_active=now - seconds,
        **{"complete": True, **more},
    )


class Command:
    def __init__(self, service, capsys, monkeypatch) -> None:
        self.service = service
        self.capsys = capsys
        monkeypatch.setenv("GPU_RECLAIM_URL", service.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-root")

    async def __call__(self, *line: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, list(line))
        out, err = self.capsys.readouterr()
        return code, out, err

    async def json(self, *line: str) -> tuple[int, list]:
        code, out, _ = await self(*line, "--json")
        return code, json.loads(out)

    def names(self, action: str) -> list[SessionKey]:
        """Sorted: a command asks for several sessions at once."""
        return sorted(c[1] for c in self.service.control.calls if c[0] == action)


class Typed:
    def __init__(self, service, *line: str) -> None:
        self.ours, theirs = pty.openpty()
        code = "import sys; from jupyterhub_gpu_reclaim.cli.main import main as run;"
        code += "sys.exit(run())"
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, *line, f"--url={service.url}"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={
                **os.environ,
                "TERM": "xterm",
                "COLUMNS": "100",
                "JUPYTERHUB_API_TOKEN": "token-root",
            },
        )
        os.close(theirs)
        os.set_blocking(self.ours, False)
        self.shown = ""

    async def until(self, *texts: str) -> None:
        async with asyncio.timeout(60):
            while not all(text in self.shown for text in texts):
                await asyncio.sleep(0.02)
                with contextlib.suppress(BlockingIOError):
                    self.shown += os.read(self.ours, 65536).decode()

    async def until_asked(self, control) -> None:
        async with asyncio.timeout(60):
            while not (control.calls and control.readers):
                await asyncio.sleep(0.02)

    async def end(self) -> int:
        try:
            return await asyncio.to_thread(self.child.wait, 60)
        finally:
            os.close(self.ours)
