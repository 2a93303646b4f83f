"""Starts a Hub on paper, for what JupyterHub itself validates after reading everything.

A program of its own (``python -m jupyterhub_gpu_reclaim.hub.dry_start FILE``), run by
``jupyterhub-gpu-reclaim config check``. JupyterHub's own code loads the configuration,
its users, groups, services and roles, with the configured authenticator, into a copy
of the Hub's SQLite database, or into a new one. No server, proxy or service is started,
no account of the system is made, and no file is written but that copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub.app import JupyterHub

from jupyterhub_gpu_reclaim.hub import config, config_check, self_check
from jupyterhub_gpu_reclaim.hub.merging import service_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: JupyterHub's own steps of a start, in its order, from the database to the roles.
_STEPS = (
    "init_db",
    "init_hub",
    "init_proxy",
    "init_oauth",
    "init_role_creation",
    "init_users",
    "init_groups",
    "init_services",
    "init_api_tokens",
    "init_role_assignment",
    "init_blocked_users",
)
#: Methods that would make accounts of the system.
_MAKERS = ("add_system_user", "add_group", "create_group")


async def problems_of(file: Path) -> list[str]:
    """Find what is wrong with a configuration, in sentences."""
    hub = JupyterHub.instance()
    hub.raise_config_file_errors = True
    try:
        with config.only_judging():
            hub.load_config_file(str(file))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any Python may be in it
        return [f"The Hub cannot read it: {type(error).__name__}: {error}"]
    found = self_check.found_wrong(hub.config)
    if found is None:
        return ["configure(c) is not called in it, so no session is ever suspended."]
    environment = (service_of(hub.config) or {})["environment"]
    found += self_check.late(hub.config, environment)
    found += config_check.spawners(hub.config)
    try:
        with _copied_database(hub):
            await _start(hub)
            found += self_check.warnings(hub, environment)
            hub.db.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - anybody's classes
        found.append(
            f"The Hub would not start: {type(error).__name__}: {_message_of(error)}"
        )
    return found


async def _start(hub: Any) -> None:
    """Run JupyterHub's own start, as far as it only looks.

    Raises:
        Exception: whatever would end the Hub.
    """
    for name in filter(lambda step: hasattr(hub, step), _STEPS):  # 5 has not all
        if name == "init_users":
            _make_nobody(hub.authenticator)
        done = getattr(hub, name)()
        if asyncio.iscoroutine(done):
            await done


@contextlib.contextmanager
def _copied_database(hub: Any) -> Iterator[None]:
    """Have the Hub work on a copy: who has an account already matters to it."""
    theirs = Path(str(hub.db_url).partition("sqlite:///")[2].partition("?")[0])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "jupyterhub.sqlite"
        if theirs.is_file():
            with (
                contextlib.closing(_open_read_only(theirs)) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        hub.db_url, hub.upgrade_db = f"sqlite:///{copy}", True
        yield


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _make_nobody(authenticator: Any) -> None:
    for name in _MAKERS:
        if hasattr(authenticator, name):
            setattr(authenticator, name, lambda *_, **__: None)


def _message_of(error: BaseException) -> str:
    return str(error).strip("'\"") or "it gives no reason"


def main() -> None:
    """Print the sentences as a JSON list; what else is printed is thrown away."""
    answer = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found = asyncio.run(problems_of(Path(sys.argv[1]).absolute()))
    os.write(answer, json.dumps(found).encode())


if __name__ == "__main__":
    main()
