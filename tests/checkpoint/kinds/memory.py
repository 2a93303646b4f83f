"""Memory: every kind of mapping, what was asked of it, and System V's objects.

A program starts with :data:`PRELUDE`. What it passes to ``show`` must be the same after
the return as before it, unless it is lost.
"""

# ruff: noqa: E501 - programs, of which nobody reads more than a line

from tests.checkpoint.kinds import Kind

#: What every program of the table can use.
PRELUDE = '''
import ctypes, os, signal, struct, sys, time
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
    """Those of the mapping; ``sd`` and ``ac`` are the kernel's books."""
    return [*sorted(set(line(address, "VmFlags")) - {"sd", "ac"}), line(address, "").split()[1]]
def faults(work):
    """Whether it ends a process."""
    child = os.fork()
    if not child:
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]
def writer(work):
    """A child that does it whenever it gets SIGUSR1."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    child = os.fork()
    while not child:
        signal.sigwait({signal.SIGUSR1})
        work()
    return child
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
def table(kind, *numbers):
    """The kernel's list of some, but for times, pids and what is in memory."""
    head, *lines = open("/proc/sysvipc/" + kind).read().splitlines()
    names = head.split()
    but = {"cpid", "lpid", "atime", "dtime", "ctime", "otime", "stime", "rtime", "lspid", "lrpid", "rss", "swap"}
    return [[word for name, word in zip(names, line.split()) if name not in but] for line in lines if int(line.split()[1]) in numbers]
'''

KINDS: list[Kind] = [
    Kind(
        "kernel AIO (io_setup)",
        "kept",
        "Used by aiofile, caio, MySQL and MariaDB. A request that is under way while memory"
        " is saved, or waits for a descriptor (IOCB_CMD_POLL), never tells its end. A small"
        " ring does not come back on a machine with more processors.",
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
os.setegid(4343), os.seteuid(4242)
other = libc.semget(0, 1, 0o604)
os.seteuid(0), os.setegid(0)
def look():
    values = (ctypes.c_ushort * 3)()
    libc.semctl(number, 0, 13, values)
    return values[:], libc.semget(0x5EED, 3, 0), table("sem", number, other)
show(look)
""",
    ),
    Kind(
        "waiting for a System V semaphore or message",
        "kept",
        "",
        '''
number, queue, late = libc.semget(0, 1, 0o600), libc.msgget(0, 0o600), libc.semget(0, 1, 0o600)
def waiting(work):
    """A child that waits; what it got, once it got it."""
    reading, writing = os.pipe()
    if not os.fork():
        while True:
            result = work()
            os.write(writing, b"%d %d;" % (result, ctypes.get_errno() if result < 0 else 0))
    return reading
def change(which, by):
    return libc.semop(which, struct.pack("Hhh", 0, by, 0), 1)
room = ctypes.create_string_buffer(100)
limit = struct.pack("qq", 3600, 0)
waits = [
    waiting(lambda: change(number, -1)),
    waiting(lambda: libc.semtimedop(late, struct.pack("Hhh", 0, -1, 0), 1, limit)),
    waiting(lambda: libc.msgrcv(queue, room, 50, 0, 0)),
]
def look():
    change(number, 1), change(late, 1), libc.msgsnd(queue, struct.pack("q", 1) + b"five!", 5, 0)
    return [os.read(one, 100) for one in waits]
show(look)
''',
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
    return seen, libc.msgget(-5, 0), table("msg", number)
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
child = writer(lambda: put(dying, b"child"))
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
    return seen, libc.shmget(0x4E1D, 0, 0), table("shm", loose, held, gone)
show(look)
""",
    ),
    Kind(
        "private anonymous memory",
        "kept",
        "",
        """
one = put(area(), b"hello")
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "shared anonymous memory, also with a child",
        "kept",
        "",
        """
one = put(area(SHARED | ANONYMOUS), b"hello")
child = writer(lambda: put(one + 4096, b"child"))
def look():
    put(one + 4096, b"never"), os.kill(child, signal.SIGUSR1)
    while get(one + 4096) != b"child":
        time.sleep(0.01)
    return get(one), flags(one)
show(lambda: (look()))
""",
    ),
    Kind(
        "memory that a child has in common with its parent (copy on write)",
        "kept",
        "",
        """
one = put(area(), b"hello")
reading, writing = os.pipe()
if not os.fork():
    put(one, b"child"), os.write(writing, b"1")
    while True:
        signal.pause()
os.read(reading, 1)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "a private mapping of a file, written to",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
one = put(area(PRIVATE, RW, 16384, file.fileno()) , b"mine!")

show(lambda: (get(one), get(one + 4096), os.pread(file.fileno(), 5, 0), flags(one)))
""",
    ),
    Kind(
        "a shared mapping of a file",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
one = put(area(SHARED, RW, 16384, file.fileno()), b"ours!")

show(lambda: (get(one), os.pread(file.fileno(), 5, 0), flags(one)))
""",
    ),
    Kind(
        "a shared mapping for reading alone",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
plain = os.open(file.name, os.O_RDONLY)
one = area(SHARED, 1, 16384, plain)

show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "a mapping beyond the end of its file",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
one = put(area(SHARED, RW, 1 << 20, file.fileno()), b"ours!")

show(lambda: (get(one), flags(one), faults(lambda: get(one + (512 << 10)))))
""",
    ),
    Kind(
        "a mapping of a file from its middle, moved and grown (mremap)",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
one = area(PRIVATE, RW, 8192, file.fileno(), offset=4096)
two = put(area(), b"hello")
one = libc.mremap(ctypes.c_void_p(one), ctypes.c_size_t(8192), ctypes.c_size_t(12288), 1)
two = libc.mremap(ctypes.c_void_p(two), ctypes.c_size_t(16384), ctypes.c_size_t(1 << 20), 1)

show(lambda: (get(one), get(two), flags(one), flags(two), faults(lambda: put(two + (1 << 20) - 5, b'there'))))
""",
    ),
    Kind(
        "a memfd",
        "kept",
        "",
        """
import fcntl
def sealed():
    return fcntl.fcntl(file, 1034), oct(os.fstat(file).st_mode), os.pread(file, 5, 0)
file = call(319, b"name", 0)
os.ftruncate(file, 16384)
one = put(area(SHARED, RW, 16384, file), b"hello")

show(lambda: (sealed(), get(one), flags(one)))
""",
    ),
    Kind(
        "a sealed memfd",
        "kept",
        "",
        """
import fcntl
def sealed():
    return fcntl.fcntl(file, 1034), oct(os.fstat(file).st_mode), os.pread(file, 5, 0)
file = call(319, b"name", 2)
os.ftruncate(file, 16384)
one = put(area(SHARED, RW, 16384, file), b"hello")
libc.munmap(ctypes.c_void_p(one), 16384)
fcntl.fcntl(file, 1033, 0xE)
one = area(PRIVATE, 1, 16384, file)
show(lambda: (sealed(), get(one), flags(one)))
""",
    ),
    Kind(
        "a memfd that is sealed against writes, and mapped shared",
        "refused",
        "",
        """
import fcntl
def sealed():
    return fcntl.fcntl(file, 1034), oct(os.fstat(file).st_mode), os.pread(file, 5, 0)
file = call(319, b"name", 2)
os.ftruncate(file, 16384)
one = put(area(SHARED, RW, 16384, file), b"hello")
libc.munmap(ctypes.c_void_p(one), 16384)
fcntl.fcntl(file, 1033, 0xE)
one = area(SHARED, 1, 16384, file)
show(lambda: (sealed(), get(one), flags(one)))
""",
    ),
    Kind(
        "a memfd that cannot be run (MFD_NOEXEC_SEAL)",
        "kept",
        "",
        """
import fcntl
def sealed():
    return fcntl.fcntl(file, 1034), oct(os.fstat(file).st_mode), os.pread(file, 5, 0)
file = call(319, b"name", 8)
os.ftruncate(file, 16384)
one = put(area(SHARED, RW, 16384, file), b"hello")

show(lambda: (sealed(), get(one), flags(one)))
""",
    ),
    Kind(
        "a memfd of huge pages",
        "kept",
        "",
        """
import fcntl
def sealed():
    return fcntl.fcntl(file, 1034), oct(os.fstat(file).st_mode), os.pread(file, 5, 0)
file = call(319, b"name", 4)
os.ftruncate(file, 2 << 20)
one = put(area(SHARED, RW, 2 << 20, file), b"hello")

show(lambda: (sealed(), get(one), flags(one)))
""",
    ),
    Kind(
        "/dev/zero",
        "kept",
        "",
        """
file = os.open("/dev/zero", os.O_RDWR)
one = put(area(SHARED, RW, 16384, file), b"hello")
two = put(area(PRIVATE, RW, 16384, file), b"there")
show(lambda: (get(one), get(two), flags(one), flags(two)))
""",
    ),
    Kind(
        "huge pages (MAP_HUGETLB)",
        "kept",
        "Where the other machine has as many.",
        """
one = put(area(PRIVATE | ANONYMOUS | 0x40000, RW, 2 << 20), b"hello")
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "memory that grows down (MAP_GROWSDOWN)",
        "kept",
        "",
        """
one = put(area(PRIVATE | ANONYMOUS | 0x100), b"hello")
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "locked memory (mlock, MAP_LOCKED)",
        "kept",
        "",
        """
one = put(area(PRIVATE | ANONYMOUS | 0x2000), b"hello")
two = put(area(), b"there")
call(149, two, 8192)
show(lambda: (get(one), get(two), flags(one), flags(two), flags(two + 8192)))
""",
    ),
    Kind(
        "memory that is locked when it is touched (mlock2, MLOCK_ONFAULT)",
        "lost",
        "All of it is locked after a return.",
        """
one = put(area(), b"hello")
call(325, one, 16384, 1)
show(lambda: (get(one), line(one, "Locked")))
""",
    ),
    Kind(
        "memory without reservation (MAP_NORESERVE)",
        "kept",
        "",
        """
one = put(area(PRIVATE | ANONYMOUS | 0x4000), b"hello")
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "memory that may be dropped (MAP_DROPPABLE)",
        "lost",
        "It is dropped, as it may be at any time.",
        """
one = put(area(8 | ANONYMOUS), b"hello")
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "addresses set aside, more of them than the machine has memory",
        "kept",
        "As MariaDB and Julia do. Not where vm.overcommit_memory is 2.",
        """
one, two = area(protection=0, size=1 << 40), area(PRIVATE | ANONYMOUS | 0x4000, size=1 << 38)
put(two, b"hello")
show(lambda: (get(two), call(10, one + (1 << 39), 4096, RW), get(put(one + (1 << 39), b"there")), line(one, "Size"), line(two, "Size")))
""",
    ),
    Kind(
        "memory that is closed (PROT_NONE), with what is in it",
        "kept",
        "",
        """
one = put(area(), b"hello")
call(10, one, 16384, 0)
def look():
    call(10, one, 16384, 1)
    try:
        return get(one)
    finally:
        call(10, one, 16384, 0)
show(lambda: (look(), flags(one), faults(lambda: get(one))))
""",
    ),
    Kind(
        "memory for reading alone, for running alone, for both",
        "kept",
        "",
        """
one = [put(area(), b"\\xc3ello") for _ in range(3)]
for at, protection in zip(one, (1, 4, 5)):
    call(10, at, 16384, protection)
show(lambda: ([flags(at) for at in one], [faults(lambda: put(at, b'x')) for at in one], get(one[0]), get(one[2])))
""",
    ),
    Kind(
        "protection keys (pkey_mprotect)",
        "refused",
        "",
        """
key = call(330, 0, 2)
one = put(area(), b"hello")
call(329, one, 16384, RW, key)
show(lambda: (line(one, "ProtectionKey")))
""",
    ),
    Kind(
        "sealed memory (mseal)",
        "refused",
        "",
        """
one = put(area(), b"hello")
two = put(area(), b"there")
call(462, one, 16384, 0)
call(10, two, 16384, 1), call(462, two, 16384, 0)
show(lambda: (get(one), get(two), flags(one), flags(two), libc.munmap(ctypes.c_void_p(one), 4096), libc.mprotect(ctypes.c_void_p(two), 4096, 3)))
""",
    ),
    Kind(
        "guard pages (MADV_GUARD_INSTALL)",
        "kept",
        "",
        """
one = put(area(), b"hello")
advise(one + 8192, 102, 4096)
show(lambda: (get(one), faults(lambda: get(one + 8192)), faults(lambda: put(one + 12288, b'x'))))
""",
    ),
    Kind(
        "MADV_SEQUENTIAL",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 2, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_RANDOM",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 1, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_DONTFORK",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 10, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_WIPEONFORK",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 18, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_DONTDUMP",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 16, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_MERGEABLE",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 12, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_HUGEPAGE",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 14, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_NOHUGEPAGE",
        "kept",
        "",
        """
one = advise(put(area(size=4 << 20), b"hello"), 15, 4 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_COLLAPSE",
        "kept",
        "Pages are small or huge after a return as the machine has it.",
        """
one = area(size=4 << 20)
one = put(one + (2 << 20) - one % (2 << 20), b"hello")
advise(one, 25, 2 << 20)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "MADV_FREE",
        "kept",
        "What the kernel has not taken by then stays for good.",
        """
one = advise(put(area(), b"hello"), 8)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "names of memory (PR_SET_VMA_ANON_NAME)",
        "lost",
        "",
        """
one = put(area(), b"hello")
call(157, 0x53564D41, 0, one, 16384, b"mine")
show(lambda: (line(one, "").split()[5:]))
""",
    ),
    Kind(
        "no huge pages at all (PR_SET_THP_DISABLE)",
        "kept",
        "",
        """
call(157, 41, 1, 0, 0, 0)
show(lambda: (call(157, 42, 0, 0, 0, 0)))
""",
    ),
    Kind(
        "pages in another order (remap_file_pages)",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
one = area(SHARED, RW, 16384, file.fileno())
os.pwrite(file.fileno(), b"third", 12288)
call(216, one, 4096, 0, 3, 0)
show(lambda: (get(one), get(one + 12288)))
""",
    ),
    Kind(
        "a mapping in the lowest 2 GiB (MAP_32BIT)",
        "kept",
        "",
        """
one = put(area(PRIVATE | ANONYMOUS | 0x40), b"hello")
show(lambda: (get(one), flags(one), one < 1 << 31))
""",
    ),
    Kind(
        "the heap (brk)",
        "kept",
        "",
        """
libc.sbrk.restype = ctypes.c_void_p
one = put(libc.sbrk(8192), b"hello")
show(lambda: (get(one), libc.sbrk(0)))
""",
    ),
    Kind(
        "private barriers (membarrier)",
        "kept",
        "",
        """
call(324, 16, 0, 0)
show(lambda: (call(324, 8, 0, 0)))
""",
    ),
    Kind(
        "write-only and unreadable files, mapped for writing",
        "kept",
        "",
        """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
one = put(area(SHARED, 2, 16384, file.fileno()), b"ours!")
show(lambda: (os.pread(file.fileno(), 5, 0), line(one, '').split()[1]))
""",
    ),
    Kind(
        "io_uring",
        "refused",
        "",
        """
keep = call(425, 8, ctypes.create_string_buffer(120))
show(lambda: (1))
""",
    ),
    Kind(
        "userfaultfd",
        "refused",
        "",
        """
keep = call(323, 0)
show(lambda: (1))
""",
    ),
    Kind(
        "secret memory (memfd_secret)",
        "refused",
        "",
        """
file = call(447, 0)
os.ftruncate(file, 16384)
one = put(area(SHARED, RW, 16384, file), b"hello")
os.close(file)
show(lambda: (get(one), flags(one)))
""",
    ),
    Kind(
        "a performance counter, mapped",
        "refused",
        "",
        """
attributes = ctypes.create_string_buffer(112)
attributes[0], attributes[4] = 1, 112
file = call(298, attributes, 0, -1, -1, 0)
one = area(SHARED, RW, 8192, file)
os.close(file)
show(lambda: (1))
""",
    ),
    Kind(
        "a BPF map, mapped",
        "refused",
        "",
        """
file = call(321, 0, ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4096, 1, 1024), 128), 128)
one = area(SHARED, RW, 4096, file)
os.close(file)
show(lambda: (1))
""",
    ),
    Kind(
        "a part of a System V segment",
        "refused",
        "",
        """
one = libc.shmat(libc.shmget(0, 8192, 0o1600), None, 0)
libc.munmap(ctypes.c_void_p(one), 4096)
show(lambda: (1))
""",
    ),
    Kind(
        "shadow stacks", "kept", "By CRIU; not tried, as no machine of ours has them."
    ),
    Kind("uprobes", "refused", "While somebody traces the program by them."),
    Kind(
        "memory of a device's driver", "refused", "But for NVIDIA's, which is emptied."
    ),
    Kind("the vsyscall page, the vdso", "kept", "Where the kernel has them."),
]
