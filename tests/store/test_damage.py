"""Flip, cut, lose and swap: nothing is handed out that was not written."""

import os
import shutil

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS

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
    "name", ["packs/c1/00000000", "packs/c1/index", "manifests/c1"]
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
    # A flip in the master key's name asks for a key that is not here.
    assert caught.value.reason in (Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING)
    assert "Traceback" not in caught.value.message
    assert str(root) not in caught.value.message


@pytest.mark.parametrize("name", ["packs/c1/00000000", "packs/c1/index"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_cut_object_is_damaged_at_open(committed, repository, root, name, share):
    path = root / name
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StoreError) as caught:
        repository.open("c1")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert name in caught.value.message


@pytest.mark.parametrize("name", ["packs/c1/00000000", "packs/c1/index"])
def test_lost_object_is_damaged_and_named(committed, repository, root, name):
    (root / name).unlink()
    with pytest.raises(StoreError) as caught:
        repository.open("c1")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED
    assert f"{name} is missing" in caught.value.message


def test_swapped_manifests_do_not_open(committed, begin, repository, root):
    other = begin("c2")
    other.add("random", b"x")
    other.commit()
    one, two = root / "manifests" / "c1", root / "manifests" / "c2"
    shutil.move(one, root / "aside")
    shutil.move(two, one)
    shutil.move(root / "aside", two)
    for name in ("c1", "c2"):
        with pytest.raises(StoreError, match="or the checkpoint was changed"):
            repository.open(name)


def test_pack_replaced_by_a_link_is_not_followed(committed, repository, root, tmp_path):
    pack = root / "packs" / "c1" / "00000000"
    shutil.move(pack, tmp_path / "elsewhere")
    pack.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        repository.open("c1")


def test_damaged_block_is_named_and_what_came_before_was_right(
    committed, repository, root
):
    pack = root / "packs" / "c1" / "00000000"
    data = bytearray(pack.read_bytes())
    data[262_144 + 16 + 5] ^= 1
    pack.write_bytes(data)
    stream = repository.open("c1").stream("random")
    assert next(stream) == CONTENTS["random"][:262_144]
    with pytest.raises(StoreError, match=r"block 1 of packs/c1/00000000 .*\(random\)"):
        next(stream)
    (one, *rest) = repository.open("c1").verify()
    assert one.file == "random"
    assert one.object == "packs/c1/00000000"
    assert all(problem.object == one.object for problem in rest)


def test_verify_of_a_whole_checkpoint_finds_nothing(committed, repository):
    told = []
    progress = lambda done, total: told.append((done, total))  # noqa: E731
    assert repository.open("c1").verify(progress) == []
    assert told[-1][0] == told[-1][1] > 2


def blocks_of(repository):
    checkpoint = repository.open("c1")
    return [
        (int(row["offset"]), int(row["stored"])) for row in checkpoint._index.blocks
    ]


def test_swapped_and_doubled_blocks_are_damaged(begin, repository, root):
    writer = begin()
    writer.add("random", os.urandom(3 * 262_144))
    writer.commit()
    pack = root / "packs" / "c1" / "00000000"
    good = pack.read_bytes()
    (one, size), (two, _), (three, _) = blocks_of(repository)
    assert (one, two, three) == (0, size, 2 * size)
    for wrong in (good[two:three] + good[:two] + good[three:], good[:two] * 3):
        assert len(wrong) == len(good)
        pack.write_bytes(wrong)
        with pytest.raises(StoreError) as caught:
            read_all(repository)
        assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


def test_swapped_packs_are_damaged(root, clock):
    repository = Repository(
        FolderBackend(root), clock=clock, keys=KEYS, pack_bytes=262_144
    )
    writer = repository.begin(
        id="c1", key=SessionKey("u"), incarnation="i", generation=1
    )
    writer.add("random", os.urandom(2 * 262_144))
    writer.commit()
    one, two = root / "packs" / "c1" / "00000000", root / "packs" / "c1" / "00000001"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(StoreError) as caught:
        read_all(repository)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@pytest.mark.parametrize(
    "what", ["manifests/c1", "packs/c1/index", "packs/c1/00000000"]
)
def test_replayed_object_of_an_earlier_life_of_that_id_is_damaged(
    committed, begin, repository, root, what
):
    old = (root / what).read_bytes()
    repository.delete("c1")
    writer = begin()
    for name, data in CONTENTS.items():
        writer.add(name, data)
    writer.commit()
    assert len((root / what).read_bytes()) == len(old)
    (root / what).write_bytes(old)
    with pytest.raises(StoreError) as caught:
        read_all(repository)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


def test_nothing_of_a_session_is_in_the_open(root, clock):
    repository = Repository(
        FolderBackend(root), clock=clock, keys=KEYS, compression="none"
    )
    writer = repository.begin(
        id="c1", key=SessionKey("ada", "lab"), incarnation="i", generation=1
    )
    writer.add("secret.name", b"a token of hers " * 1000)
    writer.commit()
    stored = b"".join(p.read_bytes() for p in root.rglob("*") if p.is_file())
    for word in (b"ada", b"lab", b"token", b"secret", b"pages"):
        assert word not in stored
