"""One stack (Hub, proxy, service, agent) for most, with an administrator at it."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from demo.admin import Admin
from demo.user import User
from tests.support import fake_cards, light_server
from tests.support.sharing import (
    SHARED,
    pytest_runtest_teardown,  # noqa: F401 - a hook
)
from tests.support.stack import Stack

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A false card that the agent knows of; empty where none can be made."""
    return fake_cards.shared(tmp_path_factory)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, card: str) -> Stack:
    """Everything on this machine, below a path; suspended on request only."""
    del card
    return shared_stack(
        tmp_path_factory,
        base_url="/jupyter/",
        idle_after=0,
        sample_interval=1,
        poll_interval=2,
    )


def shared_stack(tmp_path_factory: pytest.TempPathFactory, **settings: Any) -> Stack:
    def begin(**settings: Any) -> Stack:
        folder = tmp_path_factory.mktemp("s")  # short: sockets stand in it
        return Stack(folder, server=light_server.COMMAND, **settings)

    return SHARED.get(begin, **settings)


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Admin:
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
    user = new_user()
    user.start_server()
    return user
