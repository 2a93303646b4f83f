"""One stack (Hub, proxy, service, agent) for all, with an administrator at it."""

from __future__ import annotations

import contextlib
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from demo.admin import Admin
from demo.user import User
from tests.support import light_server
from tests.support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything on this machine, below a path; suspended on request only."""
    folder = tmp_path_factory.mktemp("stack")
    with Stack(
        folder,
        base_url="/jupyter/",
        idle_after=0,
        sample_interval=5,
        server=light_server.COMMAND,
    ) as stack:
        yield stack


@pytest.fixture(scope="session")
def admin(stack: Stack) -> Admin:
    """Somebody who may suspend everybody's sessions."""
    return Admin(stack)


def stop_servers(user: User) -> None:
    with contextlib.suppress(OSError):
        user.hub("DELETE", f"users/{user.name}/server", json={})


@pytest.fixture
def new_user(stack: Stack) -> Iterator[Callable[[], User]]:
    """Makes users who have logged in; their servers end with the test."""
    made: list[User] = []

    def make() -> User:
        user = User(stack.url, f"user{next(_numbers)}", stack.password)
        user.login()
        made.append(user)
        return user

    yield make
    with ThreadPoolExecutor(len(made) + 1) as together:
        list(together.map(stop_servers, made))


@pytest.fixture
def user(new_user: Callable[[], User]) -> User:
    """A user whose default server runs."""
    user = new_user()
    user.start_server()
    return user
