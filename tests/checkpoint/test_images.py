"""CRIU's image format: what goes in comes out, and damage is told."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
from jupyterhub_gpu_reclaim.checkpoint.saved_images import FILES, SavedImages
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason


def files_of(image: bytes) -> SavedImages:
    return SavedImages(None, {FILES: image})


def entries_of(saved: SavedImages):
    return saved.entries(FILES, images.FILES_MAGIC, "file_entry")


def test_image_that_nobody_parses_keeps_its_very_bytes():
    # Fields out of order, as no serializer would write them again.
    image = images.join(images.FILES_MAGIC, [b"\x10\x05" + b"\x08\x02"])
    assert files_of(image).read(FILES) == image
    assert files_of(image).written() == {FILES: image}


def test_unknown_fields_survive_a_change():
    # ip_opts (16), a message that we do not declare, within isk; fown (13) likewise.
    isk = b"\x10\x09" + b"\x82\x01\x03abc" + b"\x6a\x02xy"
    payload = b"\x08\x04\x10\x01" + b"\x22" + bytes([len(isk)]) + isk + b"\xaa\x01\x01z"
    saved = files_of(images.join(images.FILES_MAGIC, [payload]))
    entries_of(saved)[0].isk.state = 7
    (after,) = images.split(saved.read(FILES), images.FILES_MAGIC)
    assert b"\x82\x01\x03abc" in after
    assert b"\x6a\x02xy" in after
    assert b"\xaa\x01\x01z" in after
    assert images.parse("file_entry", after).isk.state == 7


def test_image_that_is_not_there_is_written_once_something_is_in_it():
    saved = SavedImages(None, {})
    assert entries_of(saved) == []
    assert saved.written() == {}
    assert (saved.size(FILES), saved.read(FILES), saved.core(1)) == (None, None, None)
    entries_of(saved).append(images.plain_file(3))
    (entry,) = images.file_entries(saved.written()[FILES])
    assert entry.id == 3


def test_path_that_is_not_utf8_is_kept():
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
def test_any_bytes_end_in_entries_or_damage(data):
    saved = files_of(images.join(images.FILES_MAGIC, []) + data)
    try:
        count = len(entries_of(saved))
    except RestoreFailed:
        return
    assert len(list(images.file_entries(saved.read(FILES)))) == count


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
