"""Memory: every kind of mapping, what was asked of it, and System V's objects.

A program starts with :data:`PRELUDE`. What it passes to ``show`` must be the same after
the return as before it, unless it is lost.
"""

from __future__ import annotations

from tests.checkpoint.kinds import Kind

#: What every program of the table can use.
PRELUDE = '''
import ctypes, errno, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = libc.shmat.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
RW, PRIVATE, SHARED, ANONYMOUS, FIXED = 3, 2, 1, 32, 16
def call(number, *arguments):
    """A system call; it must be there."""
    result = libc.syscall(number, *(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if result < 0:
        print("not here:", os.strerror(ctypes.get_errno()), flush=True)
        sys.exit()
    return result
def area(flags=PRIVATE | ANONYMOUS, protection=RW, size=4 * 4096, file=-1, at=0, offset=0):
    """A mapping's address."""
    found = libc.mmap(at or None, size, protection, flags, file, offset)
    if found == ctypes.c_void_p(-1).value:
        print("not here:", os.strerror(ctypes.get_errno()), flush=True)
        sys.exit()
    return found
def put(address, data):
    ctypes.memmove(address, data, len(data))
    return address
def get(address, size=5):
    return ctypes.string_at(address, size)
def advise(address, advice, size=4 * 4096):
    call(28, address, size, advice)
    return address
def line(address, field):
    """A field of the mapping's entry in smaps."""
    there = False
    for one in open("/proc/self/smaps"):
        words = one.split()
        if "-" in words[0] and not words[0].endswith(":"):
            start, end = (int(part, 16) for part in words[0].split("-"))
            there = start <= address < end
            if there and not field:
                return one
        elif there and one.startswith(field + ":"):
            return one.partition(":")[2].split()
def flags(address):
    """Those of the mapping; ``sd`` only counts writes, ``ac`` is an accounting matter."""
    return [*sorted(set(line(address, "VmFlags")) - {"sd"}), line(address, "").split()[1]]
def faults(work):
    """Whether it ends a process."""
    child = os.fork()
    if not child:
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]
def show(look):
    """What is seen before and after."""
    print(repr(look()), flush=True)
    while sys.stdin.readline():
        print(repr(look()), flush=True)
'''

_AIO = '''
def setup(number):
    context = ctypes.c_ulong()
    call(206, number, ctypes.byref(context))
    return context
def submit(context, *requests):
    """(tag, opcode, descriptor, buffer, offset, descriptor to be told)"""
    blocks = []
    for tag, code, fd, data, offset, told in requests:
        block = struct.pack("QIihhIQQqQII", tag, 0, 0, code, 0, fd, ctypes.addressof(data), len(data), offset, 0, told >= 0, max(told, 0))
        blocks.append(ctypes.create_string_buffer(block, 64))
    pointers = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
    return call(209, context, len(blocks), pointers)
def reap(context, most=64):
    """Tag and result of what has been done."""
    room, second = ctypes.create_string_buffer(32 * most), struct.pack("qq", 1, 0)
    count = call(208, context, 1, most, room, second)
    return [struct.unpack_from("QQqq", room, 32 * at)[::2] for at in range(count)]
'''

KINDS: list[Kind] = [
    Kind(
        "kernel AIO (io_setup)",
        "kept",
        "Used by aiofile, caio, MySQL and MariaDB. A request that waits for a"
        " descriptor (IOCB_CMD_POLL) is lost.",
        _AIO
        + """
import tempfile
file = tempfile.NamedTemporaryFile()
contexts = [setup(number) for number in (1, 128, 5000)]
event = os.eventfd(0)
out = ctypes.create_string_buffer(b"hello", 5)
submit(contexts[1], (7, 1, file.fileno(), out, 0, event), (8, 1, file.fileno(), out, 5, event))
def look():
    found = [int.from_bytes(os.read(event, 8), "little"), reap(contexts[1])]
    for context in contexts:
        room = ctypes.create_string_buffer(5)
        submit(context, (1, 0, file.fileno(), room, 5, -1))
        found += [reap(context), room.raw]
    # Once round the ring, and what is seen now is seen again.
    for _ in range(200):
        submit(contexts[0], (2, 1, file.fileno(), out, 0, -1))
        reap(contexts[0])
    submit(contexts[1], (7, 1, file.fileno(), out, 0, event), (8, 1, file.fileno(), out, 5, event))
    return found, [flags(one.value) for one in contexts]
show(look)
""",
    ),
]
