import os

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.store.format.compression import (
    Compression,
    Garbled,
    Kind,
    pack,
    unpack,
)

RANDOM = os.urandom(256 * 1024)


def round_trip(plain, compression):
    kind, data = pack(memoryview(plain), compression)
    return bytes(unpack(kind, bytes(data), len(plain)))


@given(st.binary(min_size=1, max_size=5000), st.sampled_from(Compression))
def test_codec_any_bytes_come_back(plain, compression):
    assert round_trip(plain, compression) == plain


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 9000))),
    st.integers(1, 256 * 1024),
    st.sampled_from(Compression),
)
def test_codec_any_patterns_come_back(pieces, length, compression):
    plain = b"".join(piece * count for piece, count in pieces)[:length]
    if plain:
        assert round_trip(plain, compression) == plain


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        (b"\0" * 4095 + b"\1", Kind.LZ4),
        (RANDOM, Kind.RAW),
        (RANDOM[:1], Kind.RAW),
        (b"kernel " * 30000, Kind.LZ4),
        (RANDOM[: 128 * 1024] + bytes(128 * 1024), Kind.LZ4),
    ],
    ids=["last-byte", "random", "one", "text", "half"],
)
def test_pack_of_known_contents_chooses_the_kind(plain, kind):
    assert pack(memoryview(plain), Compression.LZ4)[0] is kind


def test_pack_of_incompressible_copies_nothing():
    view = memoryview(RANDOM)
    assert pack(view, Compression.LZ4)[1] is view


def test_pack_without_compression_is_raw():
    assert pack(memoryview(bytes(9000)), Compression.NONE)[0] is Kind.RAW


@given(st.binary(max_size=300), st.sampled_from(Kind), st.integers(1, 1 << 20))
def test_unpack_of_any_bytes_is_that_length_or_garbled(data, kind, length):
    try:
        assert len(unpack(kind, data, length)) == length
    except Garbled:
        return


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.ZSTD, zstandard.compress(bytes(50_000_000))),
        (Kind.LZ4, lz4.block.compress(bytes(8192), store_size=False)),
        (Kind.RAW, bytes(4097)),
    ],
)
def test_unpack_of_another_length_is_garbled(kind, data):
    with pytest.raises(Garbled):
        unpack(kind, data, 4096)
