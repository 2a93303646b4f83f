"""Flip, cut, lose and swap: nothing is handed out that was not written."""

import os
import shutil

import pytest

from jupyterhub_gpu_reclaim.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.reasons import Reason

CONTENTS = {
    "random": os.urandom(300_000),
    "text": b"kernel state " * 30_000,
    "zero": bytes(300_000),
}


@pytest.fixture
def committed(begin):
    writer = begin()
    for name, data in CONTENTS.items():
        writer.add(name, data)
    return writer.commit()


def read_all(repository):
    checkpoint = repository.open("c1")
    return {name: checkpoint.read(name) for name in checkpoint.names()}


@pytest.mark.parametrize(
    "name", ["packs/c1/000000", "packs/c1/index", "manifests/c1.json"]
)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_flipped_bit_anywhere_is_damaged(committed, repository, root, name, share):
    path = root / name
    data = bytearray(path.read_bytes())
    at = int(len(data) * share)
    data[at] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(StoreError) as caught:
        read_all(repository)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert "Traceback" not in caught.value.message
    assert str(root) not in caught.value.message


@pytest.mark.parametrize("name", ["packs/c1/000000", "packs/c1/index"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_cut_object_is_damaged_at_open(committed, repository, root, name, share):
    path = root / name
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StoreError) as caught:
        repository.open("c1")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert name in caught.value.message


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_cut_manifest_is_damaged(committed, repository, root, share):
    path = root / "manifests" / "c1.json"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StoreError) as caught:
        repository.open("c1")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert "manifest" in caught.value.message


@pytest.mark.parametrize("name", ["packs/c1/000000", "packs/c1/index"])
def test_lost_object_is_damaged_and_named(committed, repository, root, name):
    (root / name).unlink()
    with pytest.raises(StoreError) as caught:
        repository.open("c1")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert f"{name} is missing" in caught.value.message


def test_lost_pack_after_open_is_damaged(committed, repository, root):
    checkpoint = repository.open("c1")
    (root / "packs" / "c1" / "000000").unlink()
    with pytest.raises(StoreError, match="is missing"):
        checkpoint.read("random")


def test_lost_manifest_is_missing(committed, repository, root):
    (root / "manifests" / "c1.json").unlink()
    with pytest.raises(NotFound) as caught:
        repository.open("c1")
    assert caught.value.reason is Reason.CHECKPOINT_MISSING


def test_swapped_manifests_are_damaged(committed, begin, repository, root):
    other = begin("c2")
    other.add("random", b"x")
    other.commit()
    one, two = root / "manifests" / "c1.json", root / "manifests" / "c2.json"
    shutil.move(one, root / "aside")
    shutil.move(two, one)
    shutil.move(root / "aside", two)
    for name in ("c1", "c2"):
        with pytest.raises(StoreError, match="another checkpoint"):
            repository.open(name)


def test_pack_replaced_by_a_link_is_not_followed(committed, repository, root, tmp_path):
    pack = root / "packs" / "c1" / "000000"
    shutil.move(pack, tmp_path / "elsewhere")
    pack.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        repository.open("c1")


def test_damaged_chunk_is_named_and_what_came_before_was_right(
    committed, repository, root
):
    pack = root / "packs" / "c1" / "000000"
    data = bytearray(pack.read_bytes())
    data[262_144 + 5] ^= 1
    pack.write_bytes(data)
    stream = repository.open("c1").stream("random")
    assert next(stream) == CONTENTS["random"][:262_144]
    with pytest.raises(StoreError, match="chunk 1 of random in packs/c1/000000"):
        next(stream)


def test_stream_of_unknown_file_fails_at_once(committed, repository):
    with pytest.raises(StoreError, match="no file other"):
        repository.open("c1").stream("other")
