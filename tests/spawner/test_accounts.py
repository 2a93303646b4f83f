"""Which account a user is: the same from every Hub process, on every database."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyterhub import orm
from sqlalchemy import update
from sqlalchemy.orm import Session

from jupyterhub_gpu_reclaim.hub.spawner.logins import Logins


@pytest.fixture
def hub_process(tmp_path: Path) -> Iterator[Callable[[], Session]]:
    """Makes what a Hub that starts has of its database; nothing is shared."""
    url = f"sqlite:///{tmp_path}/jupyterhub.sqlite"
    opened: list[Session] = []

    def start() -> Session:
        opened.append(orm.new_session_factory(url)())
        return opened[-1]

    yield start
    for session in opened:
        session.close()
        session.get_bind().dispose()


def make(database: Session) -> orm.User:
    user = orm.User(name="ann")
    database.add(user)
    database.commit()
    return user


def account(user: orm.User) -> str:
    wrapped = SimpleNamespace(orm_user=user)
    return Logins(SimpleNamespace(user=wrapped)).account()


@pytest.mark.parametrize("whole_seconds", [False, True])
def test_account_is_the_same_for_the_hub_that_made_it_and_for_the_next(
    hub_process, whole_seconds
):
    """MySQL and MariaDB keep whole seconds of the time at which it was made."""
    database = hub_process()
    user = make(database)
    if whole_seconds:
        kept = update(orm.User).values(created=user.created.replace(microsecond=0))
        database.execute(kept.execution_options(synchronize_session=False))
        database.commit()
        assert user.created.microsecond
    made = account(user)
    (again,) = hub_process().query(orm.User)
    assert account(again) == made


def test_next_account_of_a_name_is_another(hub_process):
    database = hub_process()
    user = make(database)
    former = account(user)
    database.delete(user)
    database.commit()
    assert account(make(database)) != former


def test_account_tells_when_it_was_made_in_utc(hub_process):
    moment = account(make(hub_process())).partition(".")[2]
    made = datetime.strptime(moment, "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)
    assert abs(made.timestamp() - time.time()) < 60
