"""Hubs that are set up in another way: subdomains, PostgreSQL, traefik.

A path before everything (``base_url``) is in ``conftest.py``'s stack. These need
``--long``, and two of them ``pip install "psycopg[binary]" jupyterhub-traefik-proxy``,
Debian's ``postgresql`` and the program ``traefik``.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.admin import Admin
from demo.stack import BIN
from demo.user import User
from tests.support import light_server
from tests.support.other_hub import OtherHub, WithSubdomains, resolve_localhost
from tests.support.postgres import Postgres, running_postgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


def cycle(admin: Admin, user: User) -> None:
    """A server with a variable in a kernel; it is there after a suspend."""
    server = user.server()
    kernel = server.start_kernel()
    with kernel:
        pid = kernel.run("import os; x = 42; print(os.getpid())").text
    admin.suspend(user.name)
    assert user.visit(f"{server.prefix}lab").status_code == 200
    with kernel:
        assert kernel.run("import os; print(x, os.getpid())").text == f"42 {pid}"
    admin.wait(user.name, phase="running")


# --- subdomains --------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a short name, for the sockets of an agent."""
    return tmp_path_factory.mktemp("s") / "s"


@pytest.fixture
def subdomains(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WithSubdomains]:
    resolve_localhost(monkeypatch)
    with WithSubdomains(folder, server=light_server.COMMAND) as stack:
        yield stack


def at_own_host(stack: WithSubdomains, user: User) -> User:
    """The same browser, at the address of this user's servers."""
    there = User(stack.host_of(user.name), user.name, user.password)
    there.http = user.http
    return there


def test_with_subdomains_a_session_comes_back(subdomains: WithSubdomains) -> None:
    ada = User.arrived(subdomains, "ada")
    cycle(Admin(subdomains), at_own_host(subdomains, ada))


# --- databases ---------------------------------------------------------------------


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_with_hub_and_journal_in_postgresql_a_session_comes_back_after_a_restart(
    folder: Path, postgres: Postgres
) -> None:
    hub, journal = postgres.database("hub"), postgres.database("journal")
    lines = f"c.JupyterHub.db_url = {hub!r}\n"
    options = {"journal_url": journal}
    with OtherHub(folder, lines, options=options) as stack:
        ada, admin = User.arrived(stack, "ada"), Admin(stack)
        cycle(admin, ada)
        admin.suspend("ada")
        stack.kill("hub")
        stack.kill("service")
        stack.kill("proxy")
        stack.start_hub()
        assert admin.wait("ada", phase="suspended")["generation"] == 2
        ada.visit("/user/ada/lab")
        cycle(admin, ada)
        assert not list((stack.folder / "service").glob("*.sqlite*"))
        assert not list(stack.folder.glob("jupyterhub.sqlite*"))


# --- proxies -----------------------------------------------------------------------

TRAEFIK = """
folder = settings["folder"]
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikProxy.traefik_api_url = f"http://127.0.0.1:{settings['proxy_api_port']}"
c.TraefikProxy.traefik_api_username = "hub"
c.TraefikProxy.traefik_api_password = "of the proxy"
c.TraefikProxy.static_config_file = folder + "/traefik.toml"
c.TraefikFileProviderProxy.dynamic_config_file = folder + "/rules.toml"
"""


def test_behind_traefik_a_session_comes_back(folder: Path) -> None:
    if importlib.util.find_spec("jupyterhub_traefik_proxy") is None:
        pytest.skip("needs pip install jupyterhub-traefik-proxy")
    if not (BIN / "traefik").exists() and not shutil.which("traefik"):
        pytest.skip("needs the program traefik")
    with OtherHub(folder, TRAEFIK) as stack:
        cycle(Admin(stack), User.arrived(stack, "ada"))
