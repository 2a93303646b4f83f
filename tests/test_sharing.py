"""What files share is begun once and ended, and each that is named is there."""

from contextlib import contextmanager

import pytest

from tests.support import root, sharing


@pytest.mark.parametrize("file", [file for group in sharing.GROUPS for file in group])
def test_each_file_of_a_group_is_there_and_runs_with_the_others(file):
    assert (root.TESTS / file).is_file()
    [group] = [group for group in sharing.GROUPS if file in group]
    scopes = {sharing.scope_of(f"tests/{one}::test_it") for one in group}
    assert scopes == {sharing.scope_of(f"tests/{file}::test_another[1]")}


def test_file_of_no_group_runs_alone():
    assert sharing.scope_of("tests/test_wire.py::test_it") == "tests/test_wire.py"


def test_what_is_shared_is_begun_once_for_the_same_settings_and_ends():
    lives = []

    @contextmanager
    def begin(**settings):
        lives.append(settings)
        yield settings
        lives.remove(settings)

    shared = sharing.Shared()
    assert shared.get(begin, a=1) is shared.get(begin, a=1)
    shared.get(begin, a=2)
    assert lives == [{"a": 1}, {"a": 2}]
    shared.end()
    assert lives == []
    shared.get(begin, a=1)
    assert lives == [{"a": 1}]
