import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.errors import StoreError
from jupyterhub_gpu_reclaim.reasons import Reason
from jupyterhub_gpu_reclaim.store.codec import Kind, decode, encode, is_zero

RANDOM = os.urandom(256 * 1024)


def round_trip(plain):
    kind, data, digest = encode(memoryview(plain))
    if kind is Kind.ZERO:
        return bytes(len(plain))
    return decode(kind, bytes(data), len(plain), digest)


@given(st.binary(min_size=1, max_size=5000))
def test_codec_any_bytes_come_back(plain):
    assert round_trip(plain) == plain


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 9000))),
    st.integers(1, 256 * 1024),
)
def test_codec_any_patterns_come_back(pieces, length):
    plain = b"".join(piece * count for piece, count in pieces)[:length]
    if plain:
        assert round_trip(plain) == plain


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        (bytes(256 * 1024), Kind.ZERO),
        (bytes(100), Kind.ZERO),
        (b"\0" * 4095 + b"\1", Kind.LZ4),
        (RANDOM, Kind.RAW),
        (RANDOM[:1], Kind.RAW),
        (b"kernel " * 30000, Kind.LZ4),
        (RANDOM[: 128 * 1024] + bytes(128 * 1024), Kind.LZ4),
    ],
    ids=["zeros", "few-zeros", "last-byte", "random", "one", "text", "half"],
)
def test_encode_of_known_contents_chooses_the_kind(plain, kind):
    assert encode(memoryview(plain)).kind is kind


def test_encode_of_incompressible_copies_nothing():
    view = memoryview(RANDOM)
    assert encode(view).data is view


@pytest.mark.parametrize("at", [0, 63, 64, 100_000, 262_143])
def test_is_zero_with_one_bit_set_is_false(at):
    plain = bytearray(262_144)
    assert is_zero(memoryview(plain))
    plain[at] = 1
    assert not is_zero(memoryview(plain))


@pytest.mark.parametrize("plain", [RANDOM, b"kernel " * 30000])
def test_decode_of_flipped_bit_is_damaged(plain):
    kind, data, digest = encode(memoryview(plain))
    for at in (0, len(data) // 2, len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 4
        with pytest.raises(StoreError) as caught:
            decode(kind, bytes(broken), len(plain), digest)
        assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@given(st.binary(max_size=300), st.integers(1, 1000))
def test_decode_of_hostile_bytes_is_damaged(data, length):
    with pytest.raises(StoreError):
        decode(Kind.LZ4, data, length, "00")


def test_decode_of_cut_data_is_damaged():
    kind, data, digest = encode(memoryview(RANDOM))
    with pytest.raises(StoreError, match="bytes instead of"):
        decode(kind, bytes(data[:-1]), len(RANDOM), digest)
