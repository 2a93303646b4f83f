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

_IPC = '''
def table(kind):
    """The kernel's list, but for times, pids and what is in memory."""
    head, *lines = open("/proc/sysvipc/" + kind).read().splitlines()
    names = head.split()
    but = {"cpid", "lpid", "atime", "dtime", "ctime", "otime", "stime", "rtime", "lspid", "lrpid", "rss", "swap"}
    return [[word for name, word in zip(names, line.split()) if name not in but] for line in lines]
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
    Kind(
        "System V semaphores",
        "kept",
        "With number, key, owner and mode. What a program had the kernel undo at its"
        " end (SEM_UNDO) is not undone after a return.",
        _IPC
        + """
number = libc.semget(0x5EED, 3, 0o1640)
libc.semctl(number, 0, 17, (ctypes.c_ushort * 3)(7, 0, 32767))
other = libc.semget(0, 1, 0o600)
def look():
    values = (ctypes.c_ushort * 3)()
    libc.semctl(number, 0, 13, values)
    return values[:], libc.semget(0x5EED, 3, 0), table("sem")
show(look)
""",
    ),
    Kind(
        "System V message queues",
        "kept",
        "With their messages.",
        _IPC
        + """
number = libc.msgget(-5, 0o1660)
for kind, text in ((3, b"three"), (1, b""), (3, b"x" * 8000)):
    message = ctypes.create_string_buffer(struct.pack("q", kind) + text)
    assert libc.msgsnd(number, message, len(text), 0) == 0
def look():
    room, seen = ctypes.create_string_buffer(9000), []
    for at in range(3):
        size = libc.msgrcv(number, room, 8500, at, 0o44000)
        seen.append((struct.unpack_from("q", room)[0], room.raw[8 : 8 + size][:9], size))
    return seen, libc.msgget(-5, 0), table("msg")
show(look)
""",
    ),
    Kind(
        "System V shared memory",
        "kept",
        "Attached or not, also removed but still attached; not a part of a segment.",
        _IPC
        + """
def segment(key, size):
    return libc.shmget(key, size, 0o1600)
def attach(number, flags=0):
    return libc.shmat(number, None, flags)
loose = segment(0x10053, 3 * 4096 + 7)
address = attach(loose)
put(address, b"first"), put(address + 8192, b"third")
libc.shmdt(ctypes.c_void_p(address))
held = segment(0x4E1D, 8 << 20)
address = put(attach(held), b"hello")
put(address + (5 << 20), b"there")
reading = attach(held, 0o10000)
gone = segment(0, 8192)
dying = put(attach(gone), b"dying")
libc.shmctl(gone, 0, None)
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: put(dying, b"child"))
child = os.fork()
while not child:
    signal.pause()
call(10, address + 4096, 4096, 1)
call(28, address, 8192, 10)
def look():
    detached = attach(loose)
    seen = get(detached), get(detached + 8192), get(detached + 4096)
    libc.shmdt(ctypes.c_void_p(detached))
    seen += get(address), get(reading), get(reading + (5 << 20)), get(dying)
    put(dying, b"never"), os.kill(child, signal.SIGUSR1)
    while get(dying) != b"child":
        time.sleep(0.01)
    put(dying, b"dying")
    seen += [flags(one) for one in (address, address + 4096, address + 8192, reading, dying)],
    seen += faults(lambda: put(reading, b"x")), faults(lambda: put(address + 4096, b"x")),
    return seen, libc.shmget(0x4E1D, 0, 0), table("shm")
show(look)
""",
    ),
]
