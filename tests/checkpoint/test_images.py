"""CRIU's image format: what goes in comes out, and damage is told."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason


def inet_entry(**fields: int) -> bytes:
    entry = images.parse("file_entry", b"")
    entry.type, entry.id = images.TYPE_INETSK, 7
    for name, value in fields.items():
        setattr(entry.isk, name, value)
    return images.serialize(entry)


def test_rewrite_files_untouched_entries_keep_their_bytes():
    # Fields out of order, as no serializer would write them again.
    odd = b"\x10\x05" + b"\x08\x02"
    image = images.join(images.FILES_MAGIC, [odd, inet_entry(ino=3)])
    assert images.rewrite_files(image, lambda entry: False) == image


def test_rewrite_files_unknown_fields_survive_a_change():
    # ip_opts (16), a message that we do not declare, within isk; fown (13) likewise.
    isk = b"\x10\x09" + b"\x82\x01\x03abc" + b"\x6a\x02xy"
    payload = b"\x08\x04\x10\x01" + b"\x22" + bytes([len(isk)]) + isk + b"\xaa\x01\x01z"

    def change(entry):
        entry.isk.state = 7
        return True

    image = images.join(images.FILES_MAGIC, [payload])
    (after,) = images.split(images.rewrite_files(image, change), images.FILES_MAGIC)
    assert b"\x82\x01\x03abc" in after
    assert b"\x6a\x02xy" in after
    assert b"\xaa\x01\x01z" in after
    assert images.parse("file_entry", after).isk.state == 7


def test_rewrite_files_path_that_is_not_utf8_is_kept():
    entry = images.parse("file_entry", b"")
    entry.type = images.TYPE_REG
    entry.reg.name = b"/home/\xff\xfe"
    image = images.join(images.FILES_MAGIC, [images.serialize(entry)])
    (read,) = images.file_entries(image)
    assert read.reg.name == b"/home/\xff\xfe"


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\x19CVT",
        images.join(images.PAGEMAP_MAGIC, []),
        images.join(images.FILES_MAGIC, [b"\x08\x01"])[:-1],
        images.join(images.FILES_MAGIC, []) + b"\x01\x00",
        images.join(images.FILES_MAGIC, []) + struct.pack("<I", 0xFFFFFFFF),
        images.join(images.FILES_MAGIC, [b"\xff\xff\xff"]),
    ],
    ids=["empty", "short", "magic", "cut", "length cut", "length huge", "no message"],
)
def test_file_entries_damaged_image_is_refused(image):
    with pytest.raises(RestoreFailed) as caught:
        list(images.file_entries(image))
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


@given(st.binary(max_size=200))
def test_rewrite_files_any_bytes_end_in_entries_or_damage(data):
    image = images.join(images.FILES_MAGIC, []) + data
    try:
        rewritten = images.rewrite_files(image, lambda entry: False)
    except RestoreFailed:
        return
    assert rewritten == image


@given(
    st.lists(
        st.builds(
            Area,
            st.integers(0, 2**47).map(lambda page: page * 4096),
            st.integers(1, 2**40),
            st.integers(0, 7),
        )
    )
)
def test_pagemap_what_is_written_is_read(areas):
    assert images.read_pagemap(images.write_pagemap(9, areas)) == (9, areas)


def test_read_pagemap_old_page_count_is_understood():
    entry = images.parse("pagemap_entry", b"\x08\x80\x20\x10\x03\x20\x04")
    head = images.parse("pagemap_head", b"\x08\x02")
    image = images.join(
        images.PAGEMAP_MAGIC, [images.serialize(head), images.serialize(entry)]
    )
    assert images.read_pagemap(image) == (2, [Area(4096, 3, 4)])


def test_read_pagemap_without_head_is_refused():
    with pytest.raises(RestoreFailed):
        images.read_pagemap(images.join(images.PAGEMAP_MAGIC, []))
