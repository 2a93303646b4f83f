"""The service as a program, begun by one that has imported it: that takes seconds."""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from demo.stack import free_port

PREFIX = "/services/gpu-reclaim/"
SPAWNER_TOKEN = "s" * 32


def preloaded() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jupyterhub_gpu_reclaim.service.app"])
    return context


def _become(environment: dict[str, str], words: list[str], told: Path) -> None:
    """In a process of its own: what the console script does, its words in a file."""
    with told.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(environment)
    sys.argv = ["jupyterhub-gpu-reclaim-service", *words]
    from jupyterhub_gpu_reclaim.service import app

    app.AGAIN_SECONDS = 3.0  # in which a busy machine asks at least once
    app.main()


class ServiceProgram:
    """It runs in a folder, with its state and log there, at a port of its own."""

    def __init__(
        self, programs: ForkServerContext, folder: Path, *words: str, **changes: str
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}{PREFIX}"
        self.spawner = f"unix:{folder}/spawner.sock"
        self._log = folder / "log"
        environment = {
            "JUPYTERHUB_API_TOKEN": "t" * 32,
            "JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
            "JUPYTERHUB_SERVICE_NAME": "gpu-reclaim",
            "GPU_RECLAIM_SPAWNER_TOKEN": SPAWNER_TOKEN,
            "GPU_RECLAIM_SPAWNER_SOCKET": f"{folder}/spawner.sock",
            **changes,
        }
        words = (f"--ReclaimService.state_dir={folder}/state", *words)
        self.process: ForkServerProcess = programs.Process(
            target=_become, args=(environment, list(words), self._log)
        )
        self.process.start()

    def told(self) -> str:
        return self._log.read_text() if self._log.exists() else ""
