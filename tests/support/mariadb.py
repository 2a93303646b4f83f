"""A MariaDB of its own for a test, where Debian's package and a driver are there."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from tests.support.agent import wait_for


class MariaDB:
    """One server on a unix socket in a folder of its own, whose clock is not UTC."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            pytest.skip("needs MariaDB: apt-get install mariadb-server")
        if importlib.util.find_spec("pymysql") is None:
            pytest.skip("needs a driver of MariaDB: pip install pymysql")
        (folder / "data" / "mysql").mkdir(parents=True)  # no accounts are asked for
        options = {
            "datadir": folder / "data",
            "socket": folder / "socket",
            "pid-file": folder / "pid",
            "default-time-zone": "+09:00",
            "innodb-log-file-size": "4M",
            "user": "root" if os.geteuid() == 0 else None,
        }
        words = ["--no-defaults", "--skip-networking", "--skip-grant-tables"]
        words += [f"--{name}={value}" for name, value in options.items() if value]
        self._url = f"mysql+pymysql://root@localhost/{{}}?unix_socket={folder}/socket"
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen([program, *words], stdout=log, stderr=log)
        wait_for(self._answers)

    def database(self, name: str) -> str:
        self._run(f"create database {name}")
        return self._url.format(name)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None
        try:
            self._run("select 1")
        except OperationalError:
            return False
        return True

    def _run(self, statement: str) -> None:
        engine = sqlalchemy.create_engine(self._url.format(""))
        try:
            with engine.begin() as connection:
                connection.execute(sqlalchemy.text(statement))
        finally:
            engine.dispose()
