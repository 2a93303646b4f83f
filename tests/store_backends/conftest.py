"""A real object store for all tests of this folder."""

import itertools

import pytest

from tests.support.object_store import served

_numbers = itertools.count()


s3 = pytest.fixture(scope="session")(served)


@pytest.fixture
def bucket(s3):
    name = f"bucket-{next(_numbers)}"
    s3.bucket(name)
    return name
