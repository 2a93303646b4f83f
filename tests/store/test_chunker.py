from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.store.chunker import CHUNK_BYTES, Chunker


def chunks_of(parts, size):
    out = []
    chunker = Chunker(lambda view: out.append(bytes(view)), size)
    for part in parts:
        chunker.feed(part)
    chunker.flush()
    return out


@given(st.lists(st.binary(max_size=40)), st.integers(1, 16))
def test_chunker_any_parts_gives_equal_bytes_in_full_chunks(parts, size):
    out = chunks_of(parts, size)
    assert b"".join(out) == b"".join(parts)
    assert all(len(chunk) == size for chunk in out[:-1])
    assert all(0 < len(chunk) <= size for chunk in out)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 16))
def test_chunker_other_cuts_give_the_same_chunks(parts, size):
    assert chunks_of(parts, size) == chunks_of([b"".join(parts)], size)


def test_chunker_buffer_reused_by_caller_is_not_seen_again():
    out = []
    chunker = Chunker(lambda view: out.append(bytes(view)), 4)
    buffer = bytearray(b"ab")
    chunker.feed(buffer)
    buffer[:] = b"cd"
    chunker.feed(buffer)
    assert out == [b"abcd"]


def test_chunker_flush_of_nothing_emits_nothing():
    assert chunks_of([], 4) == []
    assert chunks_of([b"abcd"], 4) == [b"abcd"]


def test_chunk_size_is_page_aligned():
    assert CHUNK_BYTES % 65536 == 0
