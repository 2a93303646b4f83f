"""Memory: every kind of mapping, what was asked of it, and System V's objects.

What a program passes to ``show`` must be the same after the return as before it, unless
it is lost.
"""

# ruff: noqa: E501 - programs, of which nobody reads more than a line

from tests.checkpoint.kinds import Kind, Outcome

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

_FILE = """
import tempfile
file = tempfile.NamedTemporaryFile()
file.write(b"hello" * 4096), file.flush()
"""

_SEALED = """
import fcntl
def sealed():
    return fcntl.fcntl(file, 1034), oct(os.fstat(file).st_mode), os.pread(file, 5, 0)
"""

#: What most of them look at.
SEEN = "get(one), flags(one)"


def _kind(outcome: Outcome):
    def kind(
        name: str, setup: str, look: str = "1", note: str = "", code: str = ""
    ) -> Kind:
        text = f"{PRELUDE}\n{setup}\nshow(lambda: ({look}))\n"
        return Kind(name, outcome, note, text, code)

    return kind


kept, lost, refused = _kind("kept"), _kind("lost"), _kind("refused")

KINDS: list[Kind] = [
    kept(
        "kernel AIO (io_setup)",
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
""",
        "look()",
        "Used by aiofile, caio, MySQL and MariaDB. A request that is under way while memory is saved, or waits for a descriptor (IOCB_CMD_POLL), never tells its end. A small ring does not come back on a machine with more processors.",
    ),
    kept(
        "System V semaphores",
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
""",
        "look()",
        "With number, key, owner and mode. What a program had the kernel undo at its end (SEM_UNDO) is not undone after a return.",
    ),
    kept(
        "waiting for a System V semaphore or message",
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
''',
        "look()",
    ),
    kept(
        "System V message queues",
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
""",
        "look()",
        "With their messages.",
    ),
    kept(
        "System V shared memory",
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
""",
        "look()",
        "Attached or not, also removed but still attached; not a part of a segment.",
    ),
    kept(
        "a file that two processes have mapped and open, also deleted and made anew",
        """
import mmap
def mapped(name):
    with open(name, "r+b") as file:
        return mmap.mmap(file.fileno(), 8192)
areas = []
for name in ("named", "deleted", "anew"):
    with open(name, "wb") as file:
        file.write(b"x" * 8192)
    areas.append(mapped(name))
    reading, writing = os.pipe()
    if not os.fork():
        own = mapped(name)
        os.write(writing, b"1")
        signal.pause()
    os.read(reading, 1), os.close(reading), os.close(writing)
os.unlink("deleted"), os.unlink("anew")
with open("anew", "wb") as file:
    file.write(b"y")
""",
        "[area[:1] for area in areas]",
        "As Python's ``mmap`` has it, and NVIDIA's driver for events that are shared.",
    ),
    kept("private anonymous memory", 'one = put(area(), b"hello")', SEEN),
    kept(
        "shared anonymous memory, also with a child",
        """
one = put(area(SHARED | ANONYMOUS), b"hello")
child = writer(lambda: put(one + 4096, b"child"))
def look():
    put(one + 4096, b"never"), os.kill(child, signal.SIGUSR1)
    while get(one + 4096) != b"child":
        time.sleep(0.01)
    return get(one), flags(one)
""",
        "look()",
    ),
    kept(
        "memory that a child has in common with its parent (copy on write)",
        """
one = put(area(), b"hello")
reading, writing = os.pipe()
if not os.fork():
    put(one, b"child"), os.write(writing, b"1")
    while True:
        signal.pause()
os.read(reading, 1)
""",
        SEEN,
    ),
    kept(
        "a private mapping of a file, written to",
        _FILE + 'one = put(area(PRIVATE, RW, 16384, file.fileno()) , b"mine!")',
        "get(one), get(one + 4096), os.pread(file.fileno(), 5, 0), flags(one)",
    ),
    kept(
        "a shared mapping of a file",
        _FILE + 'one = put(area(SHARED, RW, 16384, file.fileno()), b"ours!")',
        "get(one), os.pread(file.fileno(), 5, 0), flags(one)",
    ),
    kept(
        "a shared mapping for reading alone",
        _FILE
        + "plain = os.open(file.name, os.O_RDONLY); one = area(SHARED, 1, 16384, plain)",
        SEEN,
    ),
    kept(
        "a mapping beyond the end of its file",
        _FILE + 'one = put(area(SHARED, RW, 1 << 20, file.fileno()), b"ours!")',
        "get(one), flags(one), faults(lambda: get(one + (512 << 10)))",
    ),
    kept(
        "a mapping of a file from its middle, moved and grown (mremap)",
        _FILE
        + """
one = area(PRIVATE, RW, 8192, file.fileno(), offset=4096)
two = put(area(), b"hello")
one = libc.mremap(ctypes.c_void_p(one), ctypes.c_size_t(8192), ctypes.c_size_t(12288), 1)
two = libc.mremap(ctypes.c_void_p(two), ctypes.c_size_t(16384), ctypes.c_size_t(1 << 20), 1)
""",
        "get(one), get(two), flags(one), flags(two), faults(lambda: put(two + (1 << 20) - 5, b'there'))",
    ),
    kept(
        "a memfd",
        _SEALED
        + 'file = call(319, b"name", 0); os.ftruncate(file, 16384); one = put(area(SHARED, RW, 16384, file), b"hello")',
        "sealed(), get(one), flags(one)",
    ),
    kept(
        "a sealed memfd",
        _SEALED
        + 'file = call(319, b"name", 2); os.ftruncate(file, 16384); one = put(area(SHARED, RW, 16384, file), b"hello"); libc.munmap(ctypes.c_void_p(one), 16384); fcntl.fcntl(file, 1033, 0xE); one = area(PRIVATE, 1, 16384, file)',
        "sealed(), get(one), flags(one)",
    ),
    refused(
        "a memfd that is sealed against writes, and mapped shared",
        _SEALED
        + 'file = call(319, b"name", 2); os.ftruncate(file, 16384); one = put(area(SHARED, RW, 16384, file), b"hello"); libc.munmap(ctypes.c_void_p(one), 16384); fcntl.fcntl(file, 1033, 0xE); one = area(SHARED, 1, 16384, file)',
        "sealed(), get(one), flags(one)",
    ),
    kept(
        "a memfd that cannot be run (MFD_NOEXEC_SEAL)",
        _SEALED
        + 'file = call(319, b"name", 8); os.ftruncate(file, 16384); one = put(area(SHARED, RW, 16384, file), b"hello")',
        "sealed(), get(one), flags(one)",
    ),
    kept(
        "a memfd of huge pages",
        _SEALED
        + 'file = call(319, b"name", 4); os.ftruncate(file, 2 << 20); one = put(area(SHARED, RW, 2 << 20, file), b"hello")',
        "sealed(), get(one), flags(one)",
    ),
    kept(
        "/dev/zero",
        'file = os.open("/dev/zero", os.O_RDWR); one = put(area(SHARED, RW, 16384, file), b"hello"); two = put(area(PRIVATE, RW, 16384, file), b"there")',
        "get(one), get(two), flags(one), flags(two)",
    ),
    kept(
        "huge pages (MAP_HUGETLB)",
        'one = put(area(PRIVATE | ANONYMOUS | 0x40000, RW, 2 << 20), b"hello")',
        SEEN,
        "Where the other machine has as many.",
    ),
    kept(
        "memory that grows down (MAP_GROWSDOWN)",
        'one = put(area(PRIVATE | ANONYMOUS | 0x100), b"hello")',
        SEEN,
    ),
    kept(
        "locked memory (mlock, MAP_LOCKED)",
        'one = put(area(PRIVATE | ANONYMOUS | 0x2000), b"hello"); two = put(area(), b"there"); call(149, two, 8192)',
        "get(one), get(two), flags(one), flags(two), flags(two + 8192)",
    ),
    lost(
        "memory that is locked when it is touched (mlock2, MLOCK_ONFAULT)",
        'one = put(area(), b"hello"); call(325, one, 16384, 1)',
        'get(one), line(one, "Locked")',
        "All of it is locked after a return.",
    ),
    kept(
        "memory without reservation (MAP_NORESERVE)",
        'one = put(area(PRIVATE | ANONYMOUS | 0x4000), b"hello")',
        SEEN,
    ),
    lost(
        "memory that may be dropped (MAP_DROPPABLE)",
        'one = put(area(8 | ANONYMOUS), b"hello")',
        SEEN,
        "It is dropped, as it may be at any time.",
    ),
    kept(
        "addresses set aside, more of them than the machine has memory",
        'one, two = area(protection=0, size=1 << 40), area(PRIVATE | ANONYMOUS | 0x4000, size=1 << 38); put(two, b"hello")',
        'get(two), call(10, one + (1 << 39), 4096, RW), get(put(one + (1 << 39), b"there")), line(one, "Size"), line(two, "Size")',
        "As MariaDB and Julia do. Not where vm.overcommit_memory is 2.",
    ),
    kept(
        "memory that is closed (PROT_NONE), with what is in it",
        """
one = put(area(), b"hello")
call(10, one, 16384, 0)
def look():
    call(10, one, 16384, 1)
    try:
        return get(one)
    finally:
        call(10, one, 16384, 0)
""",
        "look(), flags(one), faults(lambda: get(one))",
    ),
    kept(
        "memory for reading alone, for running alone, for both",
        """
one = [put(area(), b"\\xc3ello") for _ in range(3)]
for at, protection in zip(one, (1, 4, 5)):
    call(10, at, 16384, protection)
""",
        "[flags(at) for at in one], [faults(lambda: put(at, b'x')) for at in one], get(one[0]), get(one[2])",
    ),
    refused(
        "protection keys (pkey_mprotect)",
        'key = call(330, 0, 2); one = put(area(), b"hello"); call(329, one, 16384, RW, key)',
        'line(one, "ProtectionKey")',
    ),
    refused(
        "sealed memory (mseal)",
        'one = put(area(), b"hello"); two = put(area(), b"there"); call(462, one, 16384, 0); call(10, two, 16384, 1), call(462, two, 16384, 0)',
        "get(one), get(two), flags(one), flags(two), libc.munmap(ctypes.c_void_p(one), 4096), libc.mprotect(ctypes.c_void_p(two), 4096, 3)",
    ),
    kept(
        "guard pages (MADV_GUARD_INSTALL)",
        'one = put(area(), b"hello"); advise(one + 8192, 102, 4096)',
        "get(one), faults(lambda: get(one + 8192)), faults(lambda: put(one + 12288, b'x'))",
    ),
    *(
        kept(
            f"MADV_{name}",
            f'one = advise(put(area(size=4 << 20), b"hello"), {number}, 4 << 20)',
            SEEN,
        )
        for name, number in [
            ("SEQUENTIAL", 2),
            ("RANDOM", 1),
            ("DONTFORK", 10),
            ("WIPEONFORK", 18),
            ("DONTDUMP", 16),
            ("MERGEABLE", 12),
            ("HUGEPAGE", 14),
            ("NOHUGEPAGE", 15),
        ]
    ),
    kept(
        "MADV_COLLAPSE",
        'one = area(size=4 << 20); one = put(one + (2 << 20) - one % (2 << 20), b"hello"); advise(one, 25, 2 << 20)',
        SEEN,
        "Pages are small or huge after a return as the machine has it.",
    ),
    kept(
        "MADV_FREE",
        'one = advise(put(area(), b"hello"), 8)',
        SEEN,
        "What the kernel has not taken by then stays for good.",
    ),
    lost(
        "names of memory (PR_SET_VMA_ANON_NAME)",
        'one = put(area(), b"hello"); call(157, 0x53564D41, 0, one, 16384, b"mine")',
        'line(one, "").split()[5:]',
    ),
    kept(
        "no huge pages at all (PR_SET_THP_DISABLE)",
        "call(157, 41, 1, 0, 0, 0)",
        "call(157, 42, 0, 0, 0, 0)",
    ),
    kept(
        "pages in another order (remap_file_pages)",
        _FILE
        + 'one = area(SHARED, RW, 16384, file.fileno()); os.pwrite(file.fileno(), b"third", 12288); call(216, one, 4096, 0, 3, 0)',
        "get(one), get(one + 12288)",
    ),
    kept(
        "a mapping in the lowest 2 GiB (MAP_32BIT)",
        'one = put(area(PRIVATE | ANONYMOUS | 0x40), b"hello")',
        "get(one), flags(one), one < 1 << 31",
    ),
    kept(
        "the heap (brk)",
        'libc.sbrk.restype = ctypes.c_void_p; one = put(libc.sbrk(8192), b"hello")',
        "get(one), libc.sbrk(0)",
    ),
    kept("private barriers (membarrier)", "call(324, 16, 0, 0)", "call(324, 8, 0, 0)"),
    kept(
        "write-only and unreadable files, mapped for writing",
        _FILE + 'one = put(area(SHARED, 2, 16384, file.fileno()), b"ours!")',
        "os.pread(file.fileno(), 5, 0), line(one, '').split()[1]",
    ),
    refused(
        "io_uring",
        "keep = call(425, 8, ctypes.create_string_buffer(120))",
        code="io_uring",
    ),
    refused("userfaultfd", "keep = call(323, 0)", code="handle_unsupported"),
    refused(
        "secret memory (memfd_secret)",
        'file = call(447, 0); os.ftruncate(file, 16384); one = put(area(SHARED, RW, 16384, file), b"hello"); os.close(file)',
        SEEN,
    ),
    refused(
        "a performance counter, mapped",
        "attributes = ctypes.create_string_buffer(112); attributes[0], attributes[4] = 1, 112; file = call(298, attributes, 0, -1, -1, 0); one = area(SHARED, RW, 8192, file); os.close(file)",
    ),
    refused(
        "a BPF map, mapped",
        'file = call(321, 0, ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4096, 1, 1024), 128), 128); one = area(SHARED, RW, 4096, file); os.close(file)',
    ),
    refused(
        "a part of a System V segment",
        "one = libc.shmat(libc.shmget(0, 8192, 0o1600), None, 0); libc.munmap(ctypes.c_void_p(one), 4096)",
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
