"""Reads and rewrites CRIU's image files: container format and the few messages.

Pure functions, bytes to bytes; no file is opened. An image is ``u32 magic`` once or
twice, then ``u32 size`` + protobuf, over and over (CRIU's ``image-desc.c``,
``magic.h``). Only the fields that we touch are declared below; the others survive as
unknown fields.
"""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from jupyterhub_gpu_reclaim.checkpoint.buffers import BufferReader
from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMMON_MAGIC: Final = 0x54564319
FILES_MAGIC: Final = 0x56303138
PAGEMAP_MAGIC: Final = 0x56084025
PSTREE_MAGIC: Final = 0x50273030
TTY_INFO_MAGIC: Final = 0x59453036
CORE_MAGIC: Final = 0x55053847
MM_MAGIC: Final = 0x57492820
FDINFO_MAGIC: Final = 0x56213732
IDS_MAGIC: Final = 0x54432030
FS_MAGIC: Final = 0x51403912
REMAP_MAGIC: Final = 0x59133954
GHOST_MAGIC: Final = 0x52583605
FIFO_DATA_MAGIC: Final = 0x59333054
LOCKS_MAGIC: Final = 0x54323616
INVENTORY_MAGIC: Final = 0x58313116
#: Of System V objects, by the kernel's short name for them.
IPC_MAGICS: Final = MappingProxyType(
    {"sem": 0x59573019, "msg": 0x55453737, "shm": 0x46283044}
)
SK_QUEUES_MAGIC: Final = 0x56264026
TCP_STREAM_MAGIC: Final = 0x51465506

#: ``fd_types`` of CRIU's fdinfo.proto.
TYPE_REG: Final = 1
TYPE_FIFO: Final = 3
TYPE_INETSK: Final = 4
TYPE_INOTIFY: Final = 8
TYPE_TTY: Final = 11
TYPE_FANOTIFY: Final = 12

#: ``remap_type`` of CRIU's remap-file-path.proto.
REMAP_GHOST: Final = 1

#: No message of CRIU comes near this; a larger length is damage.
MAX_ENTRY_BYTES: Final = 64 << 20

_U32 = struct.Struct("<I")

#: Bits of a pagemap entry's flags: its pages may be loaded lazily; they stand in this
#: image (CRIU's ``PE_LAZY``, ``PE_PRESENT``).
LAZY: Final = 2
PRESENT: Final = 4

# CRIU 4.1's images/*.proto, as far as we touch them: types with their fields and these
# fields' numbers; ``*`` is what may come several times. All are optional here, so that
# a missing one is ours to judge. Paths are bytes on the wire like strings, and need not
# be UTF-8.
_MESSAGES: Final = {
    "fown_entry": "uint32 uid=1 euid=2 signum=3 pid_type=4 pid=5",
    "reg_file_entry": """
        uint32 id=1 flags=2 mode=10; uint64 pos=3 size=8; fown_entry fown=5; bytes
        name=6; bool ext=9; uint32* build_id=11
    """,
    "inet_sk_entry": """
        uint32 id=1 ino=2 family=3 type=4 proto=5 state=6 src_port=7 dst_port=8
        backlog=10 shutdown=19; uint32* src_addr=11 dst_addr=12; sk_opts_entry opts=14;
        bool v6only=15; bytes ifname=17
    """,
    "tcp_stream_entry": "uint32 inq_len=1 outq_len=3 outq_seq=4 unsq_len=12",
    "netlink_sk_entry": "uint32 id=1 ino=2",
    "sk_packet_entry": "uint32 id_for=1 length=2",
    "fh_entry": "bytes path=4",
    "inotify_wd_entry": """
        uint64 i_ino=2; uint32 mask=3 s_dev=5 wd=6; fh_entry f_handle=7
    """,
    "inotify_file_entry": "uint32 id=1 flags=2; inotify_wd_entry* wd=5",
    "timerfd_entry": """
        uint64 ticks=5 vsec=7 vnsec=8 isec=9 insec=10; uint32 settime_flags=6
    """,
    "file_perms_entry": "uint32 mode=1",
    "sk_opts_entry": "uint32 so_sndbuf=1 so_rcvbuf=2; bool reuseaddr=7",
    "unix_sk_entry": """
        uint32 id=1 ino=2 type=3 state=4 flags=5 uflags=6 backlog=7 peer=8;
        sk_opts_entry opts=10; bytes name=11 name_dir=14; int32 shutdown=12;
        file_perms_entry file_perms=13; bool deleted=15
    """,
    "fifo_entry": "uint32 id=1 pipe_id=2 regf_id=3",
    "tty_info_entry": "uint32 sid=6 pgrp=7",
    "tty_file_entry": "uint32 id=1 regf_id=6",
    "file_entry": """
        int32 type=1; uint32 id=2; reg_file_entry reg=3; inet_sk_entry isk=4;
        netlink_sk_entry nlsk=7; timerfd_entry tfd=12;
        inotify_file_entry ify=13; unix_sk_entry usk=16; fifo_entry fifo=17;
        tty_file_entry tty=19
    """,
    "fdinfo_entry": "uint32 id=1 flags=2 fd=4; int32 type=3",
    "fs_entry": "uint32 cwd_id=1 root_id=2",
    "remap_file_path_entry": "uint32 orig_id=1 remap_id=2; int32 remap_type=3",
    "ghost_file_entry": "uint32 uid=1 gid=2 mode=3; bool chunks=9; uint64 size=10",
    "ghost_chunk_entry": "uint64 len=1 off=2",
    "pipe_data_entry": "uint32 pipe_id=1 bytes=2 size=3",
    "task_kobj_ids_entry": "uint32 files_id=2 ipc_ns_id=7",
    "inventory_entry": "task_kobj_ids_entry root_ids=3",
    "ipc_desc_entry": "uint32 key=1 uid=2 gid=3 cuid=4 cgid=5 mode=6 id=7",
    "file_lock_entry": "uint32 flag=1 type=2; int32 pid=3 fd=4; int64 start=5 len=6",
    "ipc_sem_entry": "ipc_desc_entry desc=1; uint32 nsems=2",
    "ipc_msg_entry": "ipc_desc_entry desc=1; uint32 qbytes=2 qnum=3",
    "ipc_msg": "uint64 mtype=1; uint32 msize=2",
    "ipc_shm_entry": "ipc_desc_entry desc=1; uint64 size=2; uint32 hugetlb_flag=4",
    "creds_entry": """
        uint32 uid=1 gid=2 euid=3 egid=4 suid=5 sgid=6 fsuid=7 fsgid=8 secbits=13
        no_new_privs=18; uint32* cap_inh=9 cap_prm=10 cap_eff=11 cap_bnd=12 groups=14
        cap_amb=19
    """,
    "img_streamer_request_entry": "bytes filename=1",
    "pagemap_head": "uint32 pages_id=1",
    "pagemap_entry": "uint64 vaddr=1 nr_pages=5; uint32 compat_nr_pages=2 flags=4",
    "pstree_entry": "uint32 pid=1 ppid=2 pgid=3 sid=4; uint32* threads=5",
    "rseq_entry": "uint64 rseq_abi_pointer=1; uint32 rseq_abi_size=2",
    "thread_core_entry": "creds_entry creds=10; rseq_entry rseq_entry=15",
    "core_entry": "thread_core_entry thread_core=5",
    "vma_entry": """
        uint64 start=1 end=2 pgoff=3 shmid=4 madv=9; uint32 prot=5 flags=6 status=7
        fdflags=10
    """,
    "mm_entry": "uint32 exe_file_id=12; vma_entry* vmas=14; int32 dumpable=15",
}


def _declare() -> dict[str, type[message.Message]]:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="jupyterhub_gpu_reclaim/criu.proto",
        package="jupyterhub_gpu_reclaim.criu",
        syntax="proto2",
    )
    for name, table in _MESSAGES.items():
        declared = file.message_type.add(name=name)
        for kind, *fields in map(str.split, table.split(";")):
            of = kind.rstrip("*")
            for word in fields:
                field_name, _, number = word.partition("=")
                one = declared.field.add(name=field_name, number=int(number))
                one.label = field.LABEL_OPTIONAL if of == kind else field.LABEL_REPEATED
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
    address: int
    pages: int
    flags: int


def damaged(why: str) -> RestoreFailed:
    return RestoreFailed(Reason.CHECKPOINT_DAMAGED, why=why)


def parse(kind: str, payload: bytes) -> Any:
    """Parse one message of the kind named in CRIU's .proto files.

    Raises:
        RestoreFailed: the bytes are no such message (``checkpoint_damaged``).
    """
    entry: Any = _CLASSES[kind]()
    try:
        entry.ParseFromString(payload)
    except message.DecodeError as error:
        raise damaged(f"a {kind} cannot be read ({error})") from None
    return entry


def serialize(entry: Any) -> bytes:
    """Serialize one message, with the fields that we do not know."""
    payload: bytes = entry.SerializeToString(deterministic=True)
    return payload


def split(data: bytes, magic: int) -> Iterator[bytes]:
    """The messages of an image that must begin with that magic, as bytes.

    Raises:
        RestoreFailed: another magic, or a length that does not fit (
            ``checkpoint_damaged``).
    """
    entries = Entries([data], magic)
    while entries.has_more():
        yield entries.payload()


def join(magic: int, payloads: Iterable[bytes]) -> bytes:
    head = _U32.pack(COMMON_MAGIC) + _U32.pack(magic)
    return head + b"".join(map(framed, payloads))


def framed(payload: bytes) -> bytes:
    return _U32.pack(len(payload)) + payload


class Entries:
    """An image in which plain data stands between the messages, read in its order.

    Raises:
        RestoreFailed: it has another magic, or is cut off (``checkpoint_damaged``).
    """

    def __init__(self, buffers: Iterable[bytes | memoryview], magic: int) -> None:
        self._stream = BufferReader(iter(buffers))
        self.has_more = self._stream.has_more
        self.read = self._stream.read  #: so many bytes, or what is left
        if self.data(2 * _U32.size) != join(magic, []):
            raise damaged(f"an image does not begin with {magic:#x}")

    def message(self, kind: str) -> Any:
        return parse(kind, self.payload())

    def payload(self) -> bytes:
        (size,) = _U32.unpack(self.data(_U32.size))
        if size > MAX_ENTRY_BYTES:
            raise damaged(f"an image holds an entry of {size} bytes")
        return self.data(size)

    def data(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise damaged("an image is cut off")
        return data


def file_entries(files_img: bytes) -> Iterator[Any]:
    for payload in split(files_img, FILES_MAGIC):
        yield parse("file_entry", payload)


def plain_file(number: int) -> Any:
    """An entry of ``files.img`` for a plain file, at its beginning; without a name."""
    entry: Any = _CLASSES["file_entry"](type=TYPE_REG, id=number)
    entry.reg.id = number
    entry.reg.flags = entry.reg.pos = 0
    for name in ("uid", "euid", "signum", "pid_type", "pid"):
        setattr(entry.reg.fown, name, 0)
    return entry


def read_pagemap(pagemap_img: bytes) -> tuple[int, list[Area]]:
    """The number of the pages image that belongs to a pagemap, and its areas.

    Raises:
        RestoreFailed: it is no pagemap image (``checkpoint_damaged``).
    """
    payloads = split(pagemap_img, PAGEMAP_MAGIC)
    first = next(payloads, None)
    if first is None:
        raise damaged("a pagemap has no head")
    areas = []
    for payload in payloads:
        entry = parse("pagemap_entry", payload)
        pages = entry.nr_pages if entry.HasField("nr_pages") else entry.compat_nr_pages
        areas.append(Area(entry.vaddr, pages, entry.flags))
    return parse("pagemap_head", first).pages_id, areas


def write_pagemap(pages_id: int, areas: Iterable[Area]) -> bytes:
    """A pagemap image of those areas, which must be in ascending order."""
    payloads = [serialize(_CLASSES["pagemap_head"](pages_id=pages_id))]
    for area in areas:
        entry = _CLASSES["pagemap_entry"](
            vaddr=area.address,
            compat_nr_pages=min(area.pages, 0xFFFFFFFF),
            flags=area.flags,
            nr_pages=area.pages,
        )
        payloads.append(serialize(entry))
    return join(PAGEMAP_MAGIC, payloads)
