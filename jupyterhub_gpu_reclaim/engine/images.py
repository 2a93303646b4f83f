"""Read and rewrite CRIU's image files as bytes: container format and the few messages.

Called by ``sockets``, ``files``, ``address_space``, ``pages`` and the agent's restore.
Pure functions, bytes to bytes: it opens nothing. An image is ``u32 magic`` once or
twice, then ``u32 size`` + protobuf, over and over (CRIU's ``image-desc.c``,
``magic.h``). Only the fields that we touch are declared below; the others survive as
unknown fields, and an entry that nobody changes keeps its very bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from jupyterhub_gpu_reclaim.errors import RestoreFailed
from jupyterhub_gpu_reclaim.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

COMMON_MAGIC: Final = 0x54564319
FILES_MAGIC: Final = 0x56303138
PAGEMAP_MAGIC: Final = 0x56084025
PSTREE_MAGIC: Final = 0x50273030
CORE_MAGIC: Final = 0x55053847
MM_MAGIC: Final = 0x57492820

#: ``fd_types`` of CRIU's fdinfo.proto.
TYPE_REG: Final = 1
TYPE_INETSK: Final = 4

#: No message of CRIU comes near this; a larger length is damage.
MAX_ENTRY_BYTES: Final = 64 << 20

_U32 = struct.Struct("<I")

#: Bits of a pagemap entry's flags: its pages stand in an earlier image; they may be
#: loaded lazily; they stand in this one (CRIU's ``PE_PARENT``, ``LAZY``, ``PRESENT``).
IN_PARENT: Final = 1
LAZY: Final = 2
PRESENT: Final = 4

# CRIU 4.1's images/*.proto, as far as we touch them:
# name, number, type. All are optional here, so that a missing one is ours to judge.
# Paths are bytes on the wire like strings, and need not be UTF-8.
_MESSAGES: Final[dict[str, tuple[tuple[str, int, str], ...]]] = {
    "reg_file_entry": (
        ("id", 1, "uint32"),
        ("flags", 2, "uint32"),
        ("pos", 3, "uint64"),
        ("name", 6, "bytes"),
        ("size", 8, "uint64"),
        ("mode", 10, "uint32"),
        ("build_id", 11, "uint32*"),
    ),
    "inet_sk_entry": (
        ("id", 1, "uint32"),
        ("ino", 2, "uint32"),
        ("family", 3, "uint32"),
        ("type", 4, "uint32"),
        ("proto", 5, "uint32"),
        ("state", 6, "uint32"),
        ("src_port", 7, "uint32"),
        ("dst_port", 8, "uint32"),
        ("backlog", 10, "uint32"),
        ("src_addr", 11, "uint32*"),
        ("dst_addr", 12, "uint32*"),
        ("v6only", 15, "bool"),
        ("ifname", 17, "bytes"),
        ("shutdown", 19, "uint32"),
    ),
    "file_entry": (
        ("type", 1, "int32"),
        ("id", 2, "uint32"),
        ("reg", 3, "reg_file_entry"),
        ("isk", 4, "inet_sk_entry"),
    ),
    "pagemap_head": (("pages_id", 1, "uint32"),),
    "pagemap_entry": (
        ("vaddr", 1, "uint64"),
        ("compat_nr_pages", 2, "uint32"),
        ("in_parent", 3, "bool"),
        ("flags", 4, "uint32"),
        ("nr_pages", 5, "uint64"),
    ),
    "pstree_entry": (
        ("pid", 1, "uint32"),
        ("ppid", 2, "uint32"),
        ("sid", 4, "uint32"),
        ("threads", 5, "uint32*"),
    ),
    "rseq_entry": (
        ("rseq_abi_pointer", 1, "uint64"),
        ("rseq_abi_size", 2, "uint32"),
    ),
    "thread_core_entry": (("rseq_entry", 15, "rseq_entry"),),
    "user_x86_regs_entry": (
        ("ax", 11, "uint64"),
        ("orig_ax", 16, "uint64"),
        ("ip", 17, "uint64"),
        ("mode", 28, "int32"),
    ),
    "thread_info_x86": (("gpregs", 2, "user_x86_regs_entry"),),
    "core_entry": (
        ("thread_info", 2, "thread_info_x86"),
        ("thread_core", 5, "thread_core_entry"),
    ),
    "vma_entry": (
        ("start", 1, "uint64"),
        ("end", 2, "uint64"),
        ("prot", 5, "uint32"),
        ("flags", 6, "uint32"),
        ("status", 7, "uint32"),
        ("madv", 9, "uint64"),
    ),
    "mm_entry": (
        ("exe_file_id", 12, "uint32"),
        ("vmas", 14, "vma_entry*"),
    ),
}


def _declare() -> dict[str, type[message.Message]]:
    """The message classes, made at run time: no generated code to keep in step."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="jupyterhub_gpu_reclaim/criu.proto",
        package="jupyterhub_gpu_reclaim.criu",
        syntax="proto2",
    )
    for name, fields in _MESSAGES.items():
        declared = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            one = declared.field.add(name=field_name, number=number)
            repeated = kind.endswith("*")
            one.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            of = kind.rstrip("*")
            if of in _MESSAGES:
                one.type = field.TYPE_MESSAGE
                one.type_name = f".{file.package}.{of}"
            else:
                one.type = field.Type.Value(f"TYPE_{of.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{name}")
        )
        for name in _MESSAGES
    }


_CLASSES: Final = _declare()


class Area(NamedTuple):
    """A run of pages of one address space, as a pagemap image lists it."""

    address: int
    pages: int
    flags: int


def _damaged(why: str) -> RestoreFailed:
    return RestoreFailed(Reason.CHECKPOINT_DAMAGED, why=why)


def parse(kind: str, payload: bytes) -> Any:
    """One message of the kind named in CRIU's .proto files.

    Raises:
        RestoreFailed: the bytes are no such message (``checkpoint_damaged``).
    """
    entry: Any = _CLASSES[kind]()
    try:
        entry.ParseFromString(payload)
    except message.DecodeError as error:
        raise _damaged(f"a {kind} cannot be read ({error})") from None
    return entry


def serialize(entry: Any) -> bytes:
    """One message as bytes, with the fields that we do not know."""
    payload: bytes = entry.SerializeToString(deterministic=True)
    return payload


def split(data: bytes, magic: int) -> Iterator[bytes]:
    """The messages of an image that must begin with that magic, as bytes.

    Raises:
        RestoreFailed: another magic, or a length that does not fit (
            ``checkpoint_damaged``).
    """
    head = _U32.pack(COMMON_MAGIC) + _U32.pack(magic)
    if data[: len(head)] != head:
        raise _damaged(f"an image does not begin with {magic:#x}")
    view, at = memoryview(data), len(head)
    while at < len(view):
        if at + _U32.size > len(view):
            raise _damaged("an image ends in the middle of a length")
        (size,) = _U32.unpack_from(view, at)
        at += _U32.size
        if size > MAX_ENTRY_BYTES or at + size > len(view):
            raise _damaged(f"an image holds an entry of {size} bytes that is not there")
        yield bytes(view[at : at + size])
        at += size


def join(magic: int, payloads: Iterable[bytes]) -> bytes:
    """An image of those messages, in that order."""
    out = bytearray(_U32.pack(COMMON_MAGIC) + _U32.pack(magic))
    for payload in payloads:
        out += _U32.pack(len(payload))
        out += payload
    return bytes(out)


def only(image: bytes, magic: int) -> bytes:
    """The one message of an image.

    Raises:
        RestoreFailed: it holds another number of them (``checkpoint_damaged``).
    """
    payloads = list(split(image, magic))
    if len(payloads) != 1:
        raise _damaged(f"an image holds {len(payloads)} entries, not one")
    return payloads[0]


def file_entries(files_img: bytes) -> Iterator[Any]:
    """Every ``file_entry`` of a ``files.img``."""
    for payload in split(files_img, FILES_MAGIC):
        yield parse("file_entry", payload)


def rewrite_files(files_img: bytes, change: Callable[[Any], bool]) -> bytes:
    """``files.img`` with every entry that ``change`` altered written anew.

    Args:
        files_img: the image as CRIU wrote it.
        change: alters the ``file_entry`` it is given in place, and says whether it did.

    Raises:
        RestoreFailed: it is no ``files.img`` (``checkpoint_damaged``).
    """
    payloads = []
    for payload in split(files_img, FILES_MAGIC):
        entry = parse("file_entry", payload)
        payloads.append(serialize(entry) if change(entry) else payload)
    return join(FILES_MAGIC, payloads)


def read_pagemap(pagemap_img: bytes) -> tuple[int, list[Area]]:
    """The number of the pages image that belongs to a pagemap, and its areas.

    Raises:
        RestoreFailed: it is no pagemap image (``checkpoint_damaged``).
    """
    payloads = split(pagemap_img, PAGEMAP_MAGIC)
    first = next(payloads, None)
    if first is None:
        raise _damaged("a pagemap has no head")
    areas = []
    for payload in payloads:
        entry = parse("pagemap_entry", payload)
        pages = entry.nr_pages if entry.HasField("nr_pages") else entry.compat_nr_pages
        flags = entry.flags
        # As old versions wrote it (CRIU's init_compat_pagemap_entry).
        if entry.in_parent:
            flags |= IN_PARENT
        elif not entry.HasField("flags"):
            flags = PRESENT
        areas.append(Area(entry.vaddr, pages, flags))
    return parse("pagemap_head", first).pages_id, areas


def write_pagemap(pages_id: int, areas: Iterable[Area]) -> bytes:
    """A pagemap image of those areas, which must be in ascending order."""
    payloads = [serialize(_CLASSES["pagemap_head"](pages_id=pages_id))]
    for area in areas:
        entry: Any = _CLASSES["pagemap_entry"](
            vaddr=area.address,
            compat_nr_pages=min(area.pages, 0xFFFFFFFF),
            flags=area.flags,
            nr_pages=area.pages,
        )
        if area.flags & IN_PARENT:
            entry.in_parent = True
        payloads.append(serialize(entry))
    return join(PAGEMAP_MAGIC, payloads)
