"""What is taken away from CRIU, and that nothing of it is lost: images made by hand."""

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.criu.images import Area
from jupyterhub_gpu_reclaim.checkpoint.memory import plan as memory_plan
from jupyterhub_gpu_reclaim.checkpoint.memory.plan import (
    ANON_PRIVATE,
    GUARD,
    HEAP,
    PAGE,
    REGULAR,
    Span,
    overlap,
    subtract,
)
from jupyterhub_gpu_reclaim.checkpoint.saved_images import Piece, SavedImages
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason
from tests.checkpoint.conftest import Image

#: Pages of the smallest piece.
FEW = memory_plan.SMALLEST // PAGE
PLAIN = REGULAR | ANON_PRIVATE
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22
BASE = 0x10000 * PAGE


@dataclass
class Saved:
    """One process to be written as CRIU would; addresses in pages above BASE."""

    pid: int = 301
    parent: int = 0
    exe: int = 1
    #: start, end, and what differs from plain memory.
    vmas: list = field(default_factory=list)
    #: start, pages, flags.
    areas: list = field(default_factory=list)
    #: Addresses of threads' rseq fields, in bytes above BASE.
    rseq: list = field(default_factory=list)

    def add_to(self, image: Image) -> None:
        image[f"mm-{self.pid}.img"] = images.join(images.MM_MAGIC, [self.mm()])
        threads = range(self.pid, self.pid + max(1, len(self.rseq)))
        for thread, address in zip(threads, [*self.rseq, None], strict=False):
            core = images.parse("core_entry", b"")
            if address is not None:
                core.thread_core.rseq_entry.rseq_abi_pointer = BASE + address
                core.thread_core.rseq_entry.rseq_abi_size = 32
            payload = images.serialize(core)
            image[f"core-{thread}.img"] = images.join(images.CORE_MAGIC, [payload])
        entry = images.parse("pstree_entry", b"")
        entry.pid, entry.ppid = self.pid, self.parent
        entry.threads.extend(threads)
        image["pstree.img"] = image.get(
            "pstree.img", images.join(images.PSTREE_MAGIC, [])
        ) + join_more(images.serialize(entry))
        areas = [Area(BASE + at * PAGE, n, flags) for at, n, flags in self.areas]
        image[f"pagemap-{self.pid}.img"] = images.write_pagemap(self.pid, areas)
        count = sum(n for _, n, flags in self.areas if flags & images.PRESENT)
        numbers = (number.to_bytes(8, "little") for number in range(count))
        data = b"".join(number * (PAGE // 8) for number in numbers)
        image[f"pages-{self.pid}.img"] = data

    def mm(self) -> bytes:
        mm = images.parse("mm_entry", b"")
        mm.exe_file_id = self.exe
        for start, end, changes in self.vmas:
            plain = {"prot": READ_WRITE, "flags": PRIVATE_ANONYMOUS, "status": PLAIN}
            mm.vmas.add(
                start=BASE + start * PAGE, end=BASE + end * PAGE, **{**plain, **changes}
            )
        return images.serialize(mm)


def join_more(payload: bytes) -> bytes:
    return images.join(images.PSTREE_MAGIC, [payload])[8:]


def saved_image(*processes: Saved) -> Image:
    image = Image()
    for process in processes:
        process.add_to(image)
    return image


def contents(pagemap: bytes, data: bytes) -> dict[int, bytes]:
    """Address → page, as CRIU would restore it."""
    found, at = {}, 0
    for address, count, flags in images.read_pagemap(pagemap)[1]:
        if flags & images.PRESENT:
            for number in range(count):
                found[address + number * PAGE] = data[at : at + PAGE]
                at += PAGE
    assert at == len(data)
    return found


class Planned:
    """A plan, and the images that it has changed."""

    def __init__(self, image: Image, **options) -> None:
        self.images = SavedImages(image)
        self.plan = memory_plan.make_plan(self.images, **options)
        self.pieces, self.total = self.plan.pieces, self.plan.total

    def serve(self, name: str):
        return self.plan.serve(self.images, name)


def served(plan: Planned, name: str) -> bytes:
    return b"".join(plan.serve(name))


def assert_nothing_lost(plan: Planned, image: Image, pid: int) -> None:
    name = f"pages-{pid}.img"
    pagemap = f"pagemap-{pid}.img"
    before = contents(image[pagemap], image[name])
    after = contents(served(plan, pagemap), served(plan, name))
    for piece in plan.pieces.get(name, ()):
        for at in range(0, piece.length, PAGE):
            assert piece.address + at not in after
            offset = piece.offset + at
            after[piece.address + at] = image[name][offset : offset + PAGE]
    assert after == before


def refused(image: Image) -> None:
    with pytest.raises(RestoreFailed) as caught:
        Planned(image)
    assert caught.value.reason is Reason.CHECKPOINT_DAMAGED


def test_plan_neighbours_are_joined_before_they_are_judged():
    half = FEW // 2
    areas = [(10, half, 4), (10 + half, half, 6), (2000, half, 4)]
    image = saved_image(Saved(vmas=[(0, 5000, {})], areas=areas))
    plan = Planned(image)
    piece = Piece(0, memory_plan.SMALLEST, 301, BASE + 10 * PAGE)
    assert plan.pieces == {"pages-301.img": (piece,)}
    assert plan.total == memory_plan.SMALLEST
    assert_nothing_lost(plan, image, 301)


def test_plan_nothing_large_serves_the_very_files():
    image = saved_image(Saved(vmas=[(0, 5000, {})], areas=[(10, FEW - 1, 4)]))
    plan = Planned(image)
    assert plan.pieces == {}
    for name, data in image.items():
        assert served(plan, name) == data
    assert plan.serve("missing.img") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"status": PLAIN | 1 << 1},
        {"status": REGULAR | 1 << 8},
        {"status": REGULAR | 1 << 6},
        {"status": PLAIN | 1 << 3},
        {"status": PLAIN | 1 << 13},
        {"status": PLAIN | 1 << 10},
        {"status": PLAIN | 1 << 27},
        {"status": ANON_PRIVATE},
        {"flags": PRIVATE_ANONYMOUS | 0x100},
        {"flags": PRIVATE_ANONYMOUS | 0x40000},
        {"prot": 1},
        {"prot": 0},
    ],
    ids=[
        *("stack", "shared", "file", "vdso", "aio", "sysv", "plugin", "not regular"),
        *("grows down", "huge pages", "read only", "no access"),
    ],
)
def test_plan_special_memory_stays_with_criu(changes):
    vmas = [(0, 5000, changes), (5000, 9000, {"status": PLAIN | HEAP})]
    areas = [(0, 9000, 4)]
    image = saved_image(Saved(vmas=vmas, areas=areas))
    plan = Planned(image)
    (piece,) = plan.pieces["pages-301.img"]
    assert (piece.address, piece.length) == (BASE + 5000 * PAGE, 4000 * PAGE)
    assert_nothing_lost(plan, image, 301)


def test_plan_pages_that_the_kernel_writes_stay_with_criu():
    vmas = [(0, 9000, {})]
    rseq = [1000 * PAGE + 64, 5000 * PAGE - 16, 8999 * PAGE]
    image = saved_image(Saved(vmas=vmas, areas=[(0, 9000, 4)], rseq=rseq))
    plan = Planned(image)
    _, areas = images.read_pagemap(served(plan, "pagemap-301.img"))
    left = [((address - BASE) // PAGE, count) for address, count, _ in areas]
    assert left == [(1000, 1), (4999, 2), (8999, 1)]
    assert_nothing_lost(plan, image, 301)


def test_plan_what_a_child_has_in_common_stays_with_criu():
    areas = [(0, 1000, 4), (2000, 1000, 4), (4000, 1000, 4)]
    parent = [(0, 1000, {}), (2000, 3000, {}), (4000, 5000, {})]
    child = [(0, 1000, {}), (2000, 3001, {}), (4000, 5000, {})]
    image = saved_image(
        Saved(301, 300, 1, parent, areas),
        Saved(401, 301, 1, child, areas),
        Saved(501, 401, 2, child, areas),
    )
    plan = Planned(image)
    starts = {
        name: [(one.address - BASE) // PAGE for one in pieces]
        for name, pieces in plan.pieces.items()
    }
    # The last one runs another program: nothing of it is inherited.
    assert starts == {
        "pages-301.img": [2000],
        "pages-401.img": [2000],
        "pages-501.img": [0, 2000, 4000],
    }
    for pid in (301, 401, 501):
        assert_nothing_lost(plan, image, pid)


def test_plan_guarded_area_within_another_is_no_overlap():
    vmas = [(0, 5000, {}), (100, 101, {"status": PLAIN | GUARD})]
    image = saved_image(Saved(vmas=vmas, areas=[(101, 4000, 4)]))
    assert Planned(image).total == 4000 * PAGE


@pytest.mark.parametrize("flags", [12, 1, 2])
def test_plan_pages_that_are_not_here_or_of_unknown_kind_are_left_alone(flags):
    areas = [(0, 1000, flags), (1000, FEW, 4)]
    image = saved_image(Saved(vmas=[(0, 5000, {})], areas=areas))
    plan = Planned(image)
    assert plan.total == (0 if flags & ~6 else memory_plan.SMALLEST)
    assert_nothing_lost(plan, image, 301)


def test_plan_process_without_memory_is_no_damage():
    image = saved_image(
        Saved(vmas=[(0, 5000, {})], areas=[(0, FEW, 4)]), Saved(302, 301)
    )
    for name in ("mm-302.img", "pagemap-302.img", "core-302.img"):
        del image[name]
    assert Planned(image).total == memory_plan.SMALLEST


@pytest.mark.parametrize(
    "process",
    [
        Saved(vmas=[(0, 5000, {}), (4999, 6000, {})]),
        Saved(vmas=[(5000, 6000, {}), (0, 1000, {})]),
        Saved(vmas=[(10, 10, {})]),
        Saved(areas=[(0, 10, 4), (9, 10, 4)]),
        Saved(areas=[(50, 10, 4), (0, 10, 4)]),
        Saved(areas=[(0, 0, 4)]),
        Saved(areas=[(0, 1 << 52, 1)]),
    ],
    ids=[
        *("areas overlap", "areas descend", "area empty"),
        *("pages twice", "pages descend", "pages none", "pages beyond the end"),
    ],
)
def test_plan_images_out_of_order_are_refused(process):
    refused(saved_image(process))


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.update({"pages-301.img": image["pages-301.img"][:-1]}),
        lambda image: image.update({"pages-301.img": image["pages-301.img"] + b"x"}),
        lambda image: image.pop("pages-301.img"),
        lambda image: image.pop("core-301.img"),
        lambda image: image.update({"mm-301.img": image["mm-301.img"] * 2}),
        lambda image: image.update({"mm-301.img": image["mm-301.img"][:8]}),
        lambda image: image.update(
            {"pstree.img": image["pstree.img"] + image["pstree.img"][8:]}
        ),
        lambda image: image.update(
            {"pagemap-302.img": images.write_pagemap(301, [Area(BASE, FEW, 4)])}
        ),
    ],
    ids=[
        *("pages cut", "pages more", "pages gone", "thread gone", "two memories"),
        *("no memory", "process twice", "pages claimed twice"),
    ],
)
def test_plan_images_that_do_not_fit_together_are_refused(change):
    image = saved_image(
        Saved(vmas=[(0, 5000, {})], areas=[(0, FEW, 4)]),
        Saved(302, 301, 2, [(0, 5000, {})]),
    )
    Planned(image)
    change(image)
    refused(image)


spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 300)), min_size=1, max_size=6
)


def laid_out(gaps_and_sizes) -> list[tuple[int, int]]:
    found, at = [], 0
    for gap, length in gaps_and_sizes:
        found.append((at + gap, at + gap + length))
        at += gap + length
    return found


@settings(max_examples=60)
@given(
    spans,
    st.lists(st.booleans(), min_size=6, max_size=6),
    spans,
    st.lists(st.sampled_from([4, 6, 1]), min_size=6, max_size=6),
    st.lists(st.integers(0, 2000 * PAGE), max_size=3),
)
def test_plan_nothing_is_lost_whatever_the_layout(vmas, plain, areas, flags, rseq):
    changes = [{} if one else {"prot": 1} for one in plain]
    process = Saved(
        vmas=[
            (start, end, change)
            for (start, end), change in zip(laid_out(vmas), changes, strict=False)
        ],
        areas=[
            (start, end - start, flag)
            for (start, end), flag in zip(laid_out(areas), flags, strict=False)
        ],
        rseq=rseq,
    )
    image = saved_image(process)
    plan = Planned(image)
    assert_nothing_lost(plan, image, 301)
    for piece in plan.pieces.get("pages-301.img", ()):
        assert piece.length >= memory_plan.SMALLEST
        for page in range(piece.address, piece.address + piece.length, PAGE):
            number = (page - BASE) // PAGE
            assert any(a <= number < b and not c for a, b, c in process.vmas)
            assert not any(number == one // PAGE for one in rseq)


@given(spans, st.tuples(st.integers(0, 500), st.integers(1, 900)))
def test_subtract_and_overlap_together_are_the_whole(others, place):
    holes = [Span(*one) for one in laid_out(others)]
    span = Span(place[0], place[0] + place[1])
    left = [n for part in subtract(span, holes) for n in range(*part)]
    common = [n for part in overlap(span, holes) for n in range(*part)]
    assert sorted(left + common) == list(range(*span))
    assert all(any(a <= n < b for a, b in holes) for n in common)


HUGE = memory_plan.HUGE_PAGE // PAGE


def advice(image: Image, **options) -> dict[int, int]:
    """Start of an area, in pages → what it is advised when it comes back."""
    plan = Planned(image, **options)
    payload = next(images.split(served(plan, "mm-301.img"), images.MM_MAGIC))
    vmas = images.parse("mm_entry", payload).vmas
    return {(vma.start - BASE) // PAGE: vma.madv for vma in vmas}


def test_plan_advises_areas_that_were_nearly_full_and_no_others():
    vmas = [
        (0, 4 * HUGE, {}),
        (4 * HUGE, 8 * HUGE, {"prot": 7}),
        (8 * HUGE, 12 * HUGE, {"madv": 1 << 15}),
        (12 * HUGE, 16 * HUGE, {"prot": 1}),
        (16 * HUGE, 17 * HUGE - 1, {}),
        (17 * HUGE, 20 * HUGE, {"madv": 1 << 10}),
    ]
    # 96 % of the first, 94 % of the second; all of the others.
    few = 4 * HUGE // 100
    areas = [
        (4 * few, 4 * HUGE - 4 * few, 4),
        (4 * HUGE + 6 * few, 4 * HUGE - 6 * few, 4),
        (8 * HUGE, 9 * HUGE - 1, 4),
        (17 * HUGE, 3 * HUGE, 4),
    ]
    image = saved_image(Saved(vmas=vmas, areas=areas))
    none = [0, 0, 1 << 15, 0, 0, 1 << 10]
    starts = [start for start, _, _ in vmas]
    assert advice(image) == dict(zip(starts, none, strict=True))
    some = [1 << 14, 0, 1 << 15, 0, 0, 1 << 10 | 1 << 14]
    assert advice(image, advise=True) == dict(zip(starts, some, strict=True))


def test_plan_advice_keeps_what_we_do_not_know_of_an_area():
    image = saved_image(Saved(vmas=[(0, HUGE, {})], areas=[(0, HUGE, 4)]))
    # pgoff (3), shmid (4) and fd (8) of the area; aios (16) of the process.
    payload = next(images.split(image["mm-301.img"], images.MM_MAGIC))
    mm = images.parse("mm_entry", payload)
    vma = images.serialize(mm.vmas[0]) + b"\x18\x07\x20\x09\x40\x01"
    head = b"\x60\x01" + b"\x82\x01\x02ab"
    payload = head + b"\x72" + bytes([len(vma)]) + vma
    image["mm-301.img"] = images.join(images.MM_MAGIC, [payload])
    plan = Planned(image, advise=True)
    after = next(images.split(served(plan, "mm-301.img"), images.MM_MAGIC))
    assert images.parse("mm_entry", after).vmas[0].madv == 1 << 14
    for kept in (b"\x18\x07", b"\x20\x09", b"\x40\x01", b"\x82\x01\x02ab"):
        assert kept in after


@given(st.binary(max_size=120))
def test_plan_any_bytes_for_an_address_space_end_in_a_plan_or_damage(data):
    image = saved_image(Saved(vmas=[(0, 5000, {})], areas=[(0, FEW, 4)]))
    image["mm-301.img"] = images.join(images.MM_MAGIC, [data])
    try:
        plan = Planned(image)
    except RestoreFailed:
        return
    assert_nothing_lost(plan, image, 301)


def test_page_size_is_this_machines():
    assert os.sysconf("SC_PAGE_SIZE") == PAGE
