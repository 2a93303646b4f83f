import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.store.format import crypto
from jupyterhub_gpu_reclaim.store.format.compression import Kind
from jupyterhub_gpu_reclaim.store.format.crypto import Origin

KEY = os.urandom(32)


def test_seal_and_open_is_equal_and_bound():
    sealer = crypto.Sealer(KEY)
    sealed = sealer.seal(7, b"plain", b"bound")
    assert sealer.open(7, sealed, b"bound") == b"plain"
    for number, bytes_, bound in (
        (8, sealed, b"bound"),
        (7, sealed, b"other"),
        (7, sealed[:-1], b"bound"),
        (7, b"", b"bound"),
        (7, sealed + b"x", b"bound"),
    ):
        with pytest.raises(crypto.Forged):
            sealer.open(number, bytes_, bound)


def test_seal_into_is_what_seal_gives():
    sealer = crypto.Sealer(KEY)
    out = memoryview(bytearray(5 + crypto.TAG_BYTES))
    sealer.seal_into(3, b"plain", b"", out)
    assert bytes(out) == sealer.seal(3, b"plain", b"")
    plain = memoryview(bytearray(5))
    sealer.open_into(3, out, b"", plain)
    assert bytes(plain) == b"plain"
    out[0] ^= 1
    with pytest.raises(crypto.Forged):
        sealer.open_into(3, out, b"", plain)


def test_wrapped_key_opens_only_under_its_key_and_for_its_purpose():
    wrapped = crypto.wrap(KEY, b"secret", b"c1")
    assert crypto.unwrap(KEY, wrapped, b"c1") == b"secret"
    assert crypto.wrap(KEY, b"secret", b"c1") != wrapped
    for key, bytes_, bound in (
        (os.urandom(32), wrapped, b"c1"),
        (KEY, wrapped, b"c2"),
        (KEY, wrapped[:20], b"c1"),
        (KEY, b"", b"c1"),
    ):
        with pytest.raises(crypto.Forged):
            crypto.unwrap(key, bytes_, bound)


@given(
    st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3)
)
def test_derived_keys_of_different_contexts_differ(one, other):
    same = crypto.derive(KEY, "pack", *one) == crypto.derive(KEY, "pack", *other)
    assert same == (one == other)


def test_keys_of_a_checkpoint_differ_by_everything_that_they_are_bound_to():
    def origin(**changes):
        facts = {
            "id": "c1",
            "key": SessionKey("ada", "lab"),
            "generation": 1,
            "data_key": KEY,
        }
        return Origin(**{**facts, **changes})

    keys = [
        origin().pack_key(0),
        origin().pack_key(1),
        origin().index_key(),
        origin(id="c2").pack_key(0),
        origin(key=SessionKey("ada", "")).pack_key(0),
        origin(key=SessionKey("adalab", "")).pack_key(0),
        origin(generation=2).pack_key(0),
        origin(data_key=bytes(32)).pack_key(0),
        crypto.manifest_key(KEY, "c1"),
    ]
    assert len(set(keys)) == len(keys)


def test_block_is_bound_to_number_kind_chunks_and_length():
    bound = {
        crypto.bound_block(number, kind, chunks, length)
        for number in (0, 1)
        for kind in (Kind.RAW, Kind.LZ4)
        for chunks in (1, 2)
        for length in (10, 11)
    }
    assert len(bound) == 16


def test_chunk_ids_are_of_contents_and_key():
    chunks = [memoryview(made) for made in (bytes(4096), os.urandom(4096), bytes(4096))]
    ids = crypto.ChunkIds(KEY).of(chunks)
    one, two, three = ids[:16], ids[16:32], ids[32:]
    assert one == three != two
    assert crypto.ChunkIds(KEY).of(chunks[2:]) == one
    assert crypto.ChunkIds(bytes(32)).of(chunks[2:]) != one


def test_no_key_is_ever_shown():
    origin = Origin(id="c1", key=SessionKey("u"), generation=1, data_key=b"secret" * 6)
    assert "secret" not in repr(origin)
