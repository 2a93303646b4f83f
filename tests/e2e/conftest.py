"""One stack (Hub, proxy, service, agent) per module, with an administrator at it."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from demo.admin import Admin
from demo.stack import Stack
from demo.user import User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything on this machine; sessions are suspended on request only."""
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, idle_after=0, sample_interval=1) as stack:
        yield stack


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Admin:
    """Somebody who may suspend everybody's sessions."""
    return Admin(stack)


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
    for user in made:
        with contextlib.suppress(OSError):
            user.hub("DELETE", f"users/{user.name}/server", json={})


@pytest.fixture
def user(new_user: Callable[[], User]) -> User:
    """A user whose default server runs."""
    user = new_user()
    user.start_server()
    return user
