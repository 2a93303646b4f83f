"""A PostgreSQL of its own for a test, where Debian's package and a driver are there."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


class Postgres:
    """One server on a unix socket in a folder of its own, whose clock is not UTC.

    It is run as ``postgres``.
    """

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not found or os.geteuid() != 0:
            pytest.skip("needs PostgreSQL, as root: apt-get install postgresql")
        if importlib.util.find_spec("psycopg") is None:
            pytest.skip("needs a driver of PostgreSQL: pip install 'psycopg[binary]'")
        self._bin = found[-1].parent
        self._folder = folder
        folder.mkdir(mode=0o755)
        shutil.chown(folder, "postgres")
        self._run("initdb", "-D", f"{folder}/data", "-A", "trust", "-N")
        options = (
            f"-k {folder} -c listen_addresses= -c fsync=off -c timezone=Asia/Tokyo"
        )
        log = f"{folder}/log"
        data = f"{folder}/data"
        self._run("pg_ctl", "-D", data, "-w", "-o", options, "-l", log, "start")

    def database(self, name: str) -> str:
        self._run("createdb", "-h", str(self._folder), name)
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def close(self) -> None:
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-m", "immediate", "stop")

    def _run(self, program: str, *words: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(self._bin / program), *words]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=60
        )


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """One in a folder with a short path, for its socket."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a short socket path
    folder.chmod(0o755)
    server = None
    try:
        server = Postgres(folder / "server")
        yield server
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder)
