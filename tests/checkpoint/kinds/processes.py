"""What a process or a thread can have, besides files, memory and sockets.

Most rows set something up and look at it by one expression, before and after. Those
that are refused only set it up.
"""

from tests.checkpoint.kinds import Kind

PRELUDE = r"""
import ctypes, fcntl, json, mmap, os, resource, signal, struct, subprocess, sys
import threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
keep = []

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def call(number, *arguments):
    return check(libc.syscall(number, *arguments))

def prctl(option, *arguments):
    wide = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    return check(libc.prctl(option, *wide, *[ctypes.c_ulong(0)] * (4 - len(wide))))

def told(option):
    value = ctypes.c_int()
    prctl(option, ctypes.addressof(value))
    return value.value

def status(*names):
    fields = dict(line.split(":", 1) for line in open("/proc/thread-self/status"))
    return {name: fields.get(name, "").strip() for name in names}

def read(name):
    with open(f"/proc/thread-self/{name}") as file:
        return file.read()

def clone(flags):
    stack = mmap.mmap(-1, 1 << 20)
    top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + (1 << 20) - 64
    keep.append(stack)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p)
    return check(libc.clone(pause, ctypes.c_void_p(top), flags, None))

def program(code):  # struct sock_fprog of BPF instructions
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *c) for c in code))
    keep.append(text)
    return struct.pack("@HP", len(code), ctypes.addressof(text))

ALLOW = 6, 0, 0, 0x7FFF0000

def in_thread(work):
    def run():
        work()
        ready.set()
        time.sleep(10000)
    ready = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    assert ready.wait(60)

def flags_of(area):
    wanted = ctypes.addressof(ctypes.c_char.from_buffer(area))
    here = False
    for line in open("/proc/self/smaps"):
        first = line.split()[0]
        if not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            here = start <= wanted < end
        elif here and first == "VmFlags:":
            return " ".join(sorted(line.split()[1:]))

def show(look):
    print(json.dumps(look()), flush=True)

def both(look):
    show(look)
    input()
    show(look)
"""

#: Runs a row in a thread that is not the first one.
THREADED = """
def work():
{body}
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def kept(name: str, setup: str, look: str, note: str = "") -> Kind:
    return Kind(name, "kept", note, f"{PRELUDE}\n{setup}\nboth(lambda: ({look}))")


def of_threads(name: str, setup: str, look: str, note: str = "") -> Kind:
    body = f"{setup}\nboth(lambda: ({look}))"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = PRELUDE + THREADED.format(body=lines)
    return Kind(f"{name}, of one thread", "kept", note, text)


def lost(name: str, note: str, setup: str = "", look: str = "") -> Kind:
    text = f"{PRELUDE}\n{setup}\nboth(lambda: ({look}))" if setup else ""
    return Kind(name, "lost", note, text)


def refused(name: str, code: str, setup: str, note: str = "") -> Kind:
    text = f"{PRELUDE}\n{setup}\nboth(lambda: 0)"
    return Kind(name, "refused", note, text, code)


#: name, what sets it, what looks at it: of a process and of a single thread alike.
_OF_EACH = (
    (
        "CPU affinity",
        "os.sched_setaffinity(0, {0})",
        "sorted(os.sched_getaffinity(0))",
        (
            "Processors that the new machine does not have are left out; with none"
            " left, all may be used."
        ),
    ),
    (
        "nice",
        "os.setpriority(os.PRIO_PROCESS, 0, 7)",
        "os.getpriority(os.PRIO_PROCESS, 0)",
        "",
    ),
    (
        "scheduling policy SCHED_BATCH",
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        "os.sched_getscheduler(0)",
        "",
    ),
    (
        "scheduling policy SCHED_IDLE",
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_getscheduler(0)",
        "",
    ),
    (
        "scheduling policy SCHED_FIFO",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))",
        "os.sched_getscheduler(0), os.sched_getparam(0).sched_priority",
        "",
    ),
    (
        "scheduling policy SCHED_RR, reset on fork",
        "os.sched_setscheduler(0, os.SCHED_RR | 1 << 30, os.sched_param(2))",
        "os.sched_getscheduler(0), os.sched_getparam(0).sched_priority",
        "",
    ),
    ("signal at the parent's end (PR_SET_PDEATHSIG)", "prctl(1, 10)", "told(2)", ""),
    ("PR_SET_NAME", "prctl(15, b'another')", "read('comm')", ""),
    (
        "PR_SET_NO_NEW_PRIVS",
        "prctl(38, 1)",
        "prctl(39), status('NoNewPrivs')",
        "Set as well where its user has lost `sudo` meanwhile.",
    ),
    ("PR_SET_KEEPCAPS", "prctl(8, 1)", "prctl(7)", ""),
    ("securebits", "prctl(28, 0x2F)", "prctl(27)", ""),
    (
        "dropped capabilities",
        "prctl(24, 12)",
        "status('CapBnd', 'CapPrm')",
        "The bounding set also loses what the agent lacks and no program holds.",
    ),
    (
        "blocked signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [10, 12, 34, 60])",
        "sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))",
        "",
    ),
    (
        "signal stack (sigaltstack)",
        (
            "keep.append(ctypes.create_string_buffer(65536)); check(libc.sigaltstack("
            "struct.pack('=QiIQ', ctypes.addressof(keep[-1]), 0, 0, 65536), None))"
        ),
        (
            "(lambda s: (libc.sigaltstack(None, s), s.raw.hex()))("
            "ctypes.create_string_buffer(24))"
        ),
        "",
    ),
    (
        "robust futex list, rseq(2)",
        "pass",
        (
            "(lambda h, n: (call(274, 0, ctypes.byref(h), ctypes.byref(n)), h.value,"
            " n.value))(ctypes.c_void_p(), ctypes.c_size_t())"
        ),
        "",
    ),
    (
        "seccomp filter",
        "prctl(38, 1); call(317, 1, 0, program([ALLOW]))",
        "status('Seccomp', 'Seccomp_filters')",
        "",
    ),
    (
        "seccomp filter that logs",
        "prctl(38, 1); call(317, 1, 2, program([ALLOW]))",
        "status('Seccomp', 'Seccomp_filters')",
        "",
    ),
)

_OF_PROCESSES = (
    kept(
        "oom_score_adj",
        "open('/proc/self/oom_score_adj', 'w').write('333')",
        "open('/proc/self/oom_score_adj').read()",
        "One that its pod has given to the session is that of the new pod.",
    ),
    kept(
        "resource limits (ulimit)",
        "[resource.setrlimit(number, (size, resource.getrlimit(number)[1]))"
        " for number, size in ((0, 5000), (1, 1 << 40), (3, 1 << 22), (7, 500))]",
        "[resource.getrlimit(number) for number in range(16)]",
    ),
    kept("umask", "os.umask(0o027)", "status('Umask')"),
    kept("groups", "os.setgroups([5, 6, 7])", "os.getgroups(), status('Groups')"),
    Kind("user and group ids", "kept", "Agents need CAP_SYS_RESOURCE for it."),
    kept("PR_SET_CHILD_SUBREAPER", "prctl(36, 1)", "told(37)"),
    kept("PR_SET_DUMPABLE", "prctl(4, 0)", "prctl(3)"),
    kept("PR_SET_THP_DISABLE", "prctl(41, 1)", "prctl(42), status('THP_enabled')"),
    kept(
        "membarrier(2) registrations",
        "[call(324, 1 << bit, 0, 0) for bit in (2, 4, 6, 8)]",
        "call(324, 1 << 9, 0, 0)",
    ),
    kept(
        "pending signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [10, 12, 34])\n"
        "os.kill(os.getpid(), 10); signal.pthread_kill(threading.get_ident(), 12)\n"
        "call(129, os.getpid(), 34, struct.pack('=iiiIIIQ', 34, 0, -1, 0, 0, 0, 77)"
        " + bytes(96))",
        "status('SigPnd', 'ShdPnd')",
    ),
    kept(
        "ignored and handled signals",
        "signal.signal(10, signal.SIG_IGN); signal.signal(12, lambda *a: 0)",
        "status('SigIgn', 'SigCgt')",
    ),
    kept(
        "interval timers, alarm(2)",
        "signal.signal(14, lambda *a: 0)\n"
        "[signal.setitimer(which, 5000, 700) for which in range(3)]",
        "[(signal.getitimer(which)[0] > 4000, signal.getitimer(which)[1])"
        " for which in range(3)]",
    ),
    kept(
        "POSIX timers (REALTIME, MONOTONIC, CPU time, BOOTTIME, TAI)",
        "def timer(clock):\n"
        "    made = ctypes.c_int()\n"
        "    event = struct.pack('=Qii', 0, 10, 0) + bytes(48)\n"
        "    call(222, clock, event, ctypes.byref(made))\n"
        "    call(223, made, 0, struct.pack('qqqq', 700, 0, 5000, 0), None)\n"
        "    return made.value\n"
        "def left(timer):\n"
        "    value = ctypes.create_string_buffer(32)\n"
        "    call(224, timer, value)\n"
        "    every, _, seconds, _ = struct.unpack('qqqq', value.raw)\n"
        "    return every, 4000 < seconds <= 5000\n"
        "timers = [timer(clock) for clock in (0, 1, 2, 3, 7, 11)]",
        "[(one, left(one)) for one in timers]",
    ),
    kept(
        "POSIX timer that signals one thread",
        "made = ctypes.c_int()\n"
        "event = struct.pack('=QiiiI', 0, 10, 4, os.getpid(), 0) + bytes(40)\n"
        "call(222, 1, event, ctypes.byref(made))\n"
        "call(223, made, 0, struct.pack('qqqq', 0, 0, 5000, 0), None)\n",
        "[l for l in open('/proc/self/timers') if not l.startswith(('signal', 'ID'))]",
    ),
    kept(
        "a stopped child (SIGSTOP, Ctrl-Z)",
        "child = subprocess.Popen(['sleep', '1000']); child.send_signal(19)\n"
        "os.waitid(os.P_PID, child.pid, os.WSTOPPED)",
        "open(f'/proc/{child.pid}/stat').read().split()[2]",
    ),
    kept(
        "a child that has ended and was not waited for",
        "child = subprocess.Popen(['sh', '-c', 'exit 7'])\n"
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)",
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT).si_status",
    ),
    kept(
        "a table of open files that two processes share (CLONE_FILES)",
        "child = clone(0x400 | 17)\nkeep.append(os.open('/dev/null', os.O_RDONLY))",
        "call(312, os.getpid(), child, 2, 0, 0)",
    ),
    kept(
        "a pidfd, also of a child that has ended",
        "one = subprocess.Popen(['sleep', '1000']); two = subprocess.Popen(['true'])\n"
        "keep += [os.pidfd_open(one.pid), os.pidfd_open(two.pid)]; two.wait()\n"
        "import select",
        "[bool(select.select([fd], [], [], 0)[0]) for fd in keep]",
    ),
    kept(
        "address space of 60 TB (AddressSanitizer has 20)",
        "libc.mmap.restype = ctypes.c_void_p\n"
        "size = 60 << 40\n"
        "area = libc.mmap(None, ctypes.c_size_t(size), 3, 0x4022, -1,"
        " ctypes.c_long(0))\n"
        "assert area != ctypes.c_void_p(-1).value\n"
        "places = [area, area + size // 2, area + size - 4096]\n"
        "[ctypes.memset(place, 65, 100) for place in places]",
        "[ctypes.string_at(place, 101).decode() for place in places]",
    ),
    kept(
        "process group, session",
        "os.setsid() if os.getpid() != os.getsid(0) else None",
        "os.getpgid(0), os.getsid(0), os.getppid()",
    ),
    kept("chroot(2)", "os.chroot('/var')", "os.listdir('/')"),
)

_REFUSED = (
    refused(
        "a stopped child that a signal will end (kill)",
        "process_unsupported",
        "child = subprocess.Popen(['sleep', '1000']); child.send_signal(19)\n"
        "os.waitid(os.P_PID, child.pid, os.WSTOPPED); child.terminate()",
        "Until it goes on.",
    ),
    refused(
        "Landlock",
        "confined",
        "prctl(38, 1); rules = call(444, struct.pack('=Q', 2), 8, 0)\n"
        "call(446, rules, 0); os.close(rules)",
        "What it protects from would be free afterwards.",
    ),
    refused(
        "a thread in a folder of its own (unshare(CLONE_FS))",
        "process_unsupported",
        "in_thread(lambda: call(272, 0x200))",
    ),
    Kind(
        "syscall user dispatch (PR_SET_SYSCALL_USER_DISPATCH, Wine)",
        "refused",
        "From Linux 6.4 on.",
    ),
    Kind("PR_SET_MDWE", "refused"),
    refused(
        "personality(2), also of one thread",
        "process_unsupported",
        "in_thread(lambda: call(135, 0x0040000))",
        "As `setarch` sets it.",
    ),
    refused(
        "seccomp user notification",
        "handle_unsupported",
        "prctl(38, 1); keep.append(call(317, 1, 8, program([ALLOW])))",
    ),
    Kind("scheduling policy SCHED_DEADLINE", "refused", "By the rehearsal."),
    refused(
        "a main thread that has ended before the others",
        "process_unsupported",
        "threading.Thread(target=lambda: both(lambda: 0)).start(); time.sleep(0.1)\n"
        "libc.syscall(60, 0)",
    ),
    refused(
        "memory that processes share (clone(CLONE_VM))",
        "process_unsupported",
        "clone(0x100 | 17)",
    ),
    refused(
        "vfork(2) whose child does not go on",
        "process_unsupported",
        "threading.Thread(target=clone, args=(0x4100 | 17,), daemon=True).start()\n"
        "time.sleep(0.2)",
    ),
    refused(
        "folders that processes share (clone(CLONE_FS))",
        "process_unsupported",
        "clone(0x200 | 17)",
    ),
    refused(
        "a thread with a table of files of its own (unshare(CLONE_FILES))",
        "process_unsupported",
        "in_thread(lambda: call(272, 0x400))",
    ),
    Kind("a pidfd of a thread (PIDFD_THREAD)", "refused", "By CRIU."),
    Kind("a pidfd of a process outside of the session", "refused", "By CRIU."),
    Kind("address space of more than 80 TB", "refused", "By the rehearsal."),
    refused(
        "a namespace of its own", "foreign_namespace", "check(libc.unshare(0x04000000))"
    ),
    refused(
        "a debugger",
        "traced",
        "child = os.fork()\n"
        "if not child:\n"
        "    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19); time.sleep(1000)\n"
        "time.sleep(0.2)",
    ),
)

_LOST = (
    lost(
        "processor time that it has used (times, getrusage, process_time)",
        "Counted from the return on, and so is its limit (ulimit -t).",
    ),
    lost(
        "how long a sleep has lasted that does not ask for the rest (usleep)",
        "It begins anew with each save and each return: one that is longer than the"
        " time between two save points does not end.",
    ),
    refused(
        "as many open files as it may have (ulimit -n)",
        "process_unsupported",
        "resource.setrlimit(7, (40, 40))\n"
        "while len(os.listdir('/proc/self/fd')) < 39: keep.append(os.dup(0))",
        "Three have to be free.",
    ),
    refused(
        "a program that is in memory only (memfd, fexecve)",
        "process_unsupported",
        "fd = os.memfd_create('program')\n"
        "os.write(fd, open('/bin/sleep', 'rb').read())\n"
        "subprocess.Popen(['sleep', '999'], executable=f'/proc/self/fd/{fd}',"
        " pass_fds=[fd])",
    ),
    lost(
        "keys (keyctl) of a session, process or thread",
        "Each session begins with an empty keyring after a return; keys of a user"
        " (`@u`) stay with the machine. A Kerberos login in `KEYRING:session` has to"
        " be made again.",
        "call(248, b'user', b'mine', b'secret', 6, -3)",
        "libc.syscall(250, 10, -3, b'user', b'mine', 0) > 0",
    ),
    lost(
        "PR_MCE_KILL, PR_SET_MEMORY_MERGE",
        "",
        "prctl(33, 1, 1); prctl(67, 1)",
        "prctl(34), prctl(68)",
    ),
    lost(
        "PR_SET_THP_DISABLE except where advised",
        "There are no huge pages at all afterwards.",
    ),
    lost(
        "the signal with which a child ends, if it is not SIGCHLD (clone)",
        "It is SIGCHLD afterwards.",
        "signal.signal(10, lambda *a: 0); one, two = clone(10), clone(0)",
        "[open(f'/proc/{pid}/stat').read().split()[37] for pid in (one, two)]",
    ),
    lost(
        "that a parent is told of no stop (waitpid with WCONTINUED)",
        "It is told once that its children go on. An interactive Bash ends its `coproc`"
        " then, as after each SIGSTOP and SIGCONT.",
        "pid = os.fork()\nwhile not pid: signal.pause()",
        "os.waitpid(pid, os.WNOHANG | os.WCONTINUED)[0] == pid",
    ),
    lost(
        "mlock(2) of a program's file",
        "It is read again where it is needed; locked memory of its own stays locked.",
    ),
    lost(
        "mlockall(MCL_FUTURE)",
        "What it maps from then on is not locked by itself.",
        "check(libc.mlockall(2))",
        "flags_of(mmap.mmap(-1, 4096))",
    ),
    lost("uclamp and slice (sched_setattr), core scheduling cookies", ""),
    lost("PR_SET_IO_FLUSHER, PR_SET_TSC", "Nothing is forbidden by them afterwards."),
    lost(
        "NUMA policy (numactl, mbind)",
        "New pages are near the processors that it runs on.",
        "nodes = ctypes.c_ulong(1); call(238, 3, ctypes.byref(nodes), 64)",
        "read('numa_maps').split()[1]",
    ),
    lost(
        "I/O priority (ionice), timer slack, coredump_filter",
        "They are those of the agent afterwards.",
    ),
    lost("autogroup nice value", "It belongs to the terminal's session."),
    lost(
        "an I/O context that two processes share (CLONE_IO)",
        "Each has its own afterwards.",
    ),
)

KINDS: list[Kind] = [
    *(kept(*row) for row in _OF_EACH),
    *(of_threads(*row) for row in _OF_EACH),
    *_OF_PROCESSES,
    *_REFUSED,
    *_LOST,
]
