import random

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.store.packing.buffers import BufferCutter
from jupyterhub_gpu_reclaim.store.packing.pack_writer import BUFFER_BYTES

CHUNK = 4096


def cut(parts):
    out = []

    def emit(view, length):
        assert len(view) % CHUNK == 0
        assert not any(view[length:])
        out.append(bytes(view[:length]))

    cutter = BufferCutter(emit, CHUNK)
    for part in parts:
        cutter.feed(part)
    cutter.flush()
    return out


@settings(max_examples=30)
@given(st.lists(st.integers(0, BUFFER_BYTES + 5000), max_size=5))
def test_buffers_of_any_parts_are_the_same_bytes_in_full_buffers(sizes):
    plain = random.Random(len(sizes)).randbytes(sum(sizes))
    view, parts, at = memoryview(plain), [], 0
    for size in sizes:
        parts.append(view[at : at + size])
        at += size
    out = cut(parts)
    assert b"".join(out) == plain
    assert all(len(buffer) == BUFFER_BYTES for buffer in out[:-1])
    assert all(0 < len(buffer) <= BUFFER_BYTES for buffer in out)


def test_buffers_buffer_reused_by_caller_is_not_seen_again():
    out = []
    cutter = BufferCutter(lambda view, length: out.append(bytes(view[:length])), CHUNK)
    buffer = bytearray(b"ab")
    cutter.feed(buffer)
    buffer[:] = b"cd"
    cutter.feed(buffer)
    cutter.flush()
    assert out == [b"abcd"]


def test_buffers_flush_of_nothing_emits_nothing():
    assert cut([]) == []
    assert cut([bytes(BUFFER_BYTES)]) == [bytes(BUFFER_BYTES)]
