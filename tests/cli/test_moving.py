"""A store's objects are copied as they are, and open elsewhere with its key alone."""

import shutil

import pytest

from tests.cli.conftest import Store


@pytest.fixture
def other(tmp_path):
    """Another house: its own store and its own key."""
    folder = tmp_path / "other"
    folder.mkdir()
    return Store(folder)


def copy(store, other, names):
    for name in names:
        path = other.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store.root / name, path)


def test_one_checkpoint_is_its_manifest_and_the_objects_that_show_names(
    run, run_json, store, other
):
    code, shown = run_json("show", "ada-2")
    assert code == 0
    objects = [each["name"] for each in shown]
    assert any(name.startswith("packs/ada-1/") for name in objects)  # unchanged pages
    copy(store, other, objects)
    assert "0 saved" in run("ls", at=other.root)[1]
    copy(store, other, ["manifests/ada-2"])
    assert run("verify", at=other.root)[:2] == (0, "1 verified, 0 damaged\n")


def test_store_with_another_key_takes_a_copy_with_the_line_of_the_old_one(
    run, run_json, store, other
):
    objects = [each["name"] for each in run_json("show", "ada-2")[1]]
    copy(store, other, [*objects, "manifests/ada-2"])
    own = other.key_file.read_text()
    other.key_file.write_text(store.key_file.read_text() + own.replace("first", "own"))
    assert run("rekey", at=other.root, key_file=other.key_file)[0] == 0
    other.key_file.write_text(own.replace("first", "own"))
    assert other.contents("ada-2") == store.contents("ada-2")


def test_copy_does_not_open_with_another_key_or_without_one_of_its_objects(
    run, run_json, store, other
):
    objects = [each["name"] for each in run_json("show", "ada-2")[1]]
    copy(store, other, [*objects, "manifests/ada-2"])
    code, out, _ = run("verify", "--json", at=other.root, key_file=other.key_file)
    assert (code, "key_missing" in out) == (1, True)
    (other.root / objects[0]).unlink()
    code, out, _ = run("verify", "--json", at=other.root)
    assert (code, "checkpoint_damaged" in out) == (1, True)
