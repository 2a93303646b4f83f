import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.models import CheckpointInfo, SessionKey, Step
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store.codec import Kind
from jupyterhub_gpu_reclaim.store.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.manifest import (
    Body,
    ChunkRef,
    FileEntry,
    ObjectRef,
    decode_index,
    decode_manifest,
    encode_index,
    encode_manifest,
    is_name,
)
from jupyterhub_gpu_reclaim.store.repository import Repository

INFO = CheckpointInfo(
    id="c1",
    key=SessionKey("ada", "lab"),
    incarnation="i1",
    generation=3,
    created=1.5,
    logical_bytes=10,
    stored_bytes=5,
    steps=[Step(step="dump", title="Saving")],
)


def body_for(index: bytes, packs=()) -> Body:
    ref = ObjectRef(
        name="packs/c1/index", length=len(index), digest=blake3(index).hexdigest()
    )
    return Body(info=INFO, packs=list(packs), index=ref)


def decode_files(files, packs=()):
    index = encode_index(files)
    return decode_index(index, body_for(index, packs))


PACK = ObjectRef(name="packs/c1/000000", length=100, digest="")


def test_manifest_round_trip_is_equal():
    body = body_for(b"[]", [PACK])
    assert decode_manifest(encode_manifest(body), "c1") == body


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_manifest_with_any_flipped_bit_is_damaged_or_equal(at, bit):
    body = body_for(b"[]", [PACK])
    data = bytearray(encode_manifest(body))
    data[at % len(data)] ^= 1 << bit
    found = None
    with contextlib.suppress(StoreError):
        found = decode_manifest(bytes(data), "c1")
    assert found in (None, body)


@given(st.binary(max_size=200))
def test_manifest_of_any_bytes_is_damaged(data):
    with pytest.raises(StoreError) as caught:
        decode_manifest(data, "c1")
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


def test_manifest_cut_anywhere_is_damaged():
    data = encode_manifest(body_for(b"[]"))
    for end in range(len(data) - 1):
        with pytest.raises(StoreError):
            decode_manifest(data[:end], "c1")


def test_manifest_of_newer_format_says_so():
    data = encode_manifest(body_for(b"[]")).replace(b'"format":0', b'"format":7')
    with pytest.raises(StoreError, match="format 7 is not known"):
        decode_manifest(data, "c1")


def test_manifest_of_another_checkpoint_is_damaged():
    with pytest.raises(StoreError, match="another checkpoint"):
        decode_manifest(encode_manifest(body_for(b"[]")), "c2")


def test_manifest_naming_a_path_outside_is_damaged():
    evil = ObjectRef(name="packs/../../etc/shadow", length=1, digest="")
    data = encode_manifest(body_for(b"[]", [evil]))
    with pytest.raises(StoreError, match="cannot be"):
        decode_manifest(data, "c1")


def test_manifest_with_fields_of_a_newer_part_is_read():
    envelope = msgspec.json.decode(encode_manifest(body_for(b"[]")))
    inner = msgspec.json.encode({**envelope["body"], "tier": "remote"})
    data = msgspec.json.encode(
        {
            "format": 0,
            "digest": blake3(inner).hexdigest(),
            "body": msgspec.Raw(inner),
            "color": "blue",
        }
    )
    assert decode_manifest(data, "c1").info == INFO


def test_index_round_trip_is_equal():
    files = [
        FileEntry(name="empty", length=0, chunks=[]),
        FileEntry(
            name="a/pages-1.img",
            length=40,
            chunks=[
                ChunkRef(Kind.ZERO, 0, 0, 0, 10, ""),
                ChunkRef(Kind.RAW, 0, 0, 10, 10, "aa"),
                ChunkRef(Kind.LZ4, 0, 90, 10, 20, "bb"),
            ],
        ),
    ]
    assert decode_files(files, [PACK]) == files


@pytest.mark.parametrize(
    "chunk",
    [
        ChunkRef(Kind.RAW, 1, 0, 10, 10, ""),
        ChunkRef(Kind.RAW, 0, 91, 10, 10, ""),
        ChunkRef(Kind.RAW, 0, 0, 9, 10, ""),
        ChunkRef(Kind.LZ4, 0, 0, 10, 10, ""),
        ChunkRef(Kind.ZERO, 0, 5, 0, 10, ""),
        ChunkRef(Kind.LZ4, 0, 0, 5, 1 << 40, ""),
        ChunkRef(Kind.RAW, -1, 0, 10, 10, ""),
        ChunkRef(9, 0, 0, 10, 10, ""),
    ],
)
def test_index_with_impossible_chunk_is_damaged(chunk):
    file = FileEntry(name="f", length=chunk.length, chunks=[chunk])
    with pytest.raises(StoreError) as caught:
        decode_files([file], [PACK])
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@pytest.mark.parametrize(
    "files",
    [
        [FileEntry(name="f", length=1, chunks=[])],
        [FileEntry(name="../f", length=0, chunks=[])],
        [FileEntry(name="f", length=0, chunks=[])] * 2,
    ],
)
def test_index_with_impossible_files_is_damaged(files):
    with pytest.raises(StoreError) as caught:
        decode_files(files)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@pytest.mark.parametrize("name", ["a", "pages-1.img", "tmpfs/0/x.tar", "..a", "a..b/c"])
def test_is_name_of_a_plain_name_is_true(name):
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/..",
        "../a",
        "a/./b",
        "a b",
        "a\n",
        "ä",
        "a\0",
        "x" * 256,
    ],
)
def test_is_name_of_a_dangerous_name_is_false(name):
    assert not is_name(name)


def test_frozen_sample_of_format_0_is_opened(root, clock):
    shutil.copytree(Path(__file__).parent / "samples" / "format-0", root)
    checkpoint = Repository(FolderBackend(root), clock=clock).open("sample")
    assert checkpoint.names() == ["zero", "random", "text", "empty"]
    assert checkpoint.read("zero") == bytes(300_000)
    assert checkpoint.read("random") == blake3(b"sample").digest(length=5000)
    assert checkpoint.read("text") == b"kernel state " * 500
    assert checkpoint.read("empty") == b""
    assert checkpoint.info.key == SessionKey("ada", "lab")
    assert checkpoint.info.steps == [Step(step="dump", title="Saving the memory")]
