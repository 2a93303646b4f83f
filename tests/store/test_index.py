import os

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format import index as format_index
from jupyterhub_gpu_reclaim.store.format.compression import Kind
from jupyterhub_gpu_reclaim.store.format.index import (
    BLOCKS,
    ChunkIndex,
    encode_index,
    is_name,
)
from jupyterhub_gpu_reclaim.store.read.extents import extents, rest_of

KEY = b"k" * 32
CHUNK = 4096
RAW = 2 * CHUNK + 16


def small(**changes):
    """Two files; two blocks of two chunks, one raw and one packed."""
    facts = {
        "files": [("a", 3 * CHUNK), ("b/c", 100), ("empty", 0)],
        "blocks": np.array(
            [(0, 0, 0, RAW, 2, Kind.RAW), (1, 5, 10, 50, 2, Kind.LZ4)], BLOCKS
        ),
        "refs": np.array([1, 0, 4, 2], np.uint32),
        "ids": np.arange(6, dtype=np.uint64).reshape(3, 2),
    }
    return ChunkIndex(**{**facts, **changes})


def decode(data, packs=(RAW, 60)):
    return format_index.decode_index(data, KEY, chunk_bytes=CHUNK, packs=packs)


@given(st.data())
def test_index_of_any_shape_comes_back(data):
    sizes = data.draw(st.lists(st.integers(1, 64), max_size=20))
    blocks = np.array(
        [(0, n, n, CHUNK, size, Kind.LZ4) for n, size in enumerate(sizes)], BLOCKS
    )
    total = sum(sizes)
    refs = np.array(data.draw(st.lists(st.integers(0, total))), np.uint32)
    live = len(set(refs.tolist()) - {0})
    ids = np.frombuffer(os.urandom(16 * live), np.uint64).reshape(-1, 2)
    index = ChunkIndex([("f", len(refs) * CHUNK)], blocks, refs, ids)
    packs = [CHUNK + len(sizes)]
    found = decode(encode_index(index, KEY), packs)
    assert (found.refs == refs).all()
    assert (found.ids == ids).all()
    assert found.live().tolist() == sorted(set(refs.tolist()) - {0})


def test_index_is_small():
    count = 1 << 18  # 1 GiB in pages
    blocks = np.zeros(count // 64, BLOCKS)
    blocks["chunks"] = 64
    blocks["number"] = np.arange(len(blocks))
    blocks["stored"] = 64 * CHUNK + 16
    blocks["offset"] = np.arange(len(blocks)) * (64 * CHUNK + 16)
    blocks["kind"] = Kind.RAW
    ids = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(-1, 2)
    refs = np.arange(1, count + 1, dtype=np.uint32)
    index = ChunkIndex([("f", count * CHUNK)], blocks, refs, ids)
    data = encode_index(index, KEY)
    assert len(data) < 17 * count


def test_index_that_was_flipped_cut_or_doubled_is_damaged():
    data = encode_index(small(), KEY)
    for wrong in (b"", data[:-1], data * 2, bytes(len(data))):
        with pytest.raises(StoreError, match="not what was written"):
            decode(wrong)


def test_index_larger_than_one_cipher_call_takes_comes_back(monkeypatch):
    monkeypatch.setattr(format_index, "_PART_BYTES", 100)
    data = encode_index(small(), KEY)
    assert len(data) > 116
    assert (decode(data).ids == small().ids).all()
    for wrong in (data[:-1], data[116:] + data[:116], data[:116]):
        with pytest.raises(StoreError):
            decode(wrong)


BAD = {
    "pack": np.array([(9, 0, 0, RAW, 4, Kind.RAW)], BLOCKS),
    "beyond": np.array([(0, 0, 1, RAW, 2, Kind.RAW)] * 2, BLOCKS),
    "far": np.array([(0, 0, 2**64 - 1, RAW, 2, Kind.RAW)] * 2, BLOCKS),
    "none": np.array([(0, 0, 0, 20, 0, Kind.LZ4), (0, 0, 0, 20, 4, Kind.LZ4)], BLOCKS),
    "kind": np.array([(0, 0, 0, RAW, 4, 7)], BLOCKS),
    "huge": np.array([(0, 0, 0, 60, 65535, Kind.LZ4)], BLOCKS),
    "raw-short": np.array([(0, 0, 0, RAW - 1, 2, Kind.RAW)] * 2, BLOCKS),
    "no-bytes": np.array([(0, 0, 0, 16, 4, Kind.LZ4)], BLOCKS),
    "grows": np.array([(0, 0, 0, RAW, 1, Kind.LZ4)] * 4, BLOCKS),
}


@pytest.mark.parametrize("name", BAD)
def test_index_with_impossible_block_is_damaged(name):
    with pytest.raises(StoreError, match="block that cannot be"):
        decode(encode_index(small(blocks=BAD[name]), KEY))


@pytest.mark.parametrize(
    "changes",
    [
        {"refs": np.array([1, 0, 5, 2], np.uint32)},
        {"refs": np.array([1, 0, 4, 1], np.uint32)},
        {"refs": np.array([1, 0, 4], np.uint32)},
        {"ids": np.arange(8, dtype=np.uint64).reshape(4, 2)},
        {"files": [("a", 3 * CHUNK), ("a", 100)]},
        {"files": [("../a", 4 * CHUNK)]},
        {"files": [("a", 5 * CHUNK), ("b", -CHUNK)]},
    ],
    ids=["ref", "twice", "few", "ids", "same", "path", "negative"],
)
def test_index_that_does_not_add_up_is_damaged(changes):
    if "refs" not in changes and "files" not in changes:
        assert len(small().live()) == 3
    assert len(decode(encode_index(small(), KEY)).refs) == 4
    index = object.__new__(ChunkIndex)
    for name in ("files", "blocks", "refs", "ids"):
        object.__setattr__(index, name, changes.get(name, getattr(small(), name)))
    with pytest.raises(StoreError) as caught:
        decode(encode_index(index, KEY))
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@given(st.binary(max_size=200))
def test_index_of_any_plain_bytes_is_damaged(plain):
    with pytest.raises(StoreError) as caught:
        decode(crypto.Sealer(KEY).seal(0, plain, b""))
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


def test_index_that_claims_a_world_of_memory_is_damaged():
    files = [("f", 2**48)]
    claim = {"files": files, "blocks": b"", "refs": bytes(1000), "ids": b""}
    plain = msgspec.msgpack.encode(claim)
    with pytest.raises(StoreError, match="do not fit"):
        decode(crypto.Sealer(KEY).seal(0, plain, b""))


@pytest.mark.parametrize(
    "name",
    [
        *("", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b"),
        *("a b", "a\n", "ä", "a\0", "x" * 256),
    ],
)
def test_is_name_of_a_dangerous_name_is_false(name):
    assert not is_name(name)


@given(
    st.integers(0, 100), st.lists(st.tuples(st.integers(0, 120), st.integers(0, 50)))
)
def test_rest_of_is_what_no_range_has(length, skip):
    left = rest_of(length, skip)
    wanted = set(range(length)) - {
        at for offset, count in skip for at in range(offset, offset + count)
    }
    assert [at for o, n in left for at in range(o, o + n)] == sorted(wanted)


@given(st.data())
def test_runs_of_any_range_are_its_bytes(data):
    index = small(
        files=[("f", 12 * 10)],
        refs=np.array(data.draw(st.lists(st.integers(0, 4), min_size=12, max_size=12))),
    )
    chunk = 10  # runs know no pages
    blocks = [b"0123456789abcdefghij", b"ABCDEFGHIJKLMNOPQRST"]
    whole = b"".join(
        bytes(chunk)
        if ref == 0
        else blocks[(ref - 1) // 2][(ref - 1) % 2 * chunk :][:chunk]
        for ref in index.refs.tolist()
    )
    offset = data.draw(st.integers(0, 119))
    length = data.draw(st.integers(1, 120 - offset))
    found = b"".join(
        bytes(run.length)
        if run.block < 0
        else blocks[run.block][run.start : run.start + run.length]
        for run in extents(index, 0, chunk, offset, length).rows()
    )
    assert found == whole[offset : offset + length]
