"""A real object store for all tests of this folder."""

import itertools

import pytest

from tests.support.object_store import s3_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3):
    """The name of an empty bucket."""
    name = f"bucket-{next(_numbers)}"
    s3.bucket(name)
    return name
