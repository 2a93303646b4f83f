"""Open files: flags, types, states, and mappings."""

from typing import Final

from tests.checkpoint.kinds import Kind, Outcome

#: What the programs have in common; each runs in an empty folder of its own.
PRELUDE: Final = """
import ctypes, fcntl, mmap, os, select, signal, socket, stat, struct, sys, termios, time
libc = ctypes.CDLL(None, use_errno=True)

def made(name="file", content=b"some contents"):
    with open(name, "wb") as file:
        file.write(content)
    return os.path.abspath(name)

def opened(flags, name="file"):
    return os.open(made(name), flags)

def gone(fd, name="file"):
    os.unlink(name)
    return fd

def flags(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL)

def info(fd, *words):
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        return [line.split()[:4] for line in lines if line.startswith(words)]

def masks(fd):
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        return [line.split()[4] for line in lines if line.startswith("inotify")]

def checked(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value
"""

_ENDING: Final = """
def look():
    return [{look}]

print(look(), flush=True)
sys.stdin.readline()
print(look(), flush=True)
"""


def _row(
    name: str, setup: str, look: str, outcome: Outcome = "kept", note: str = ""
) -> Kind:
    return Kind(name, outcome, note, PRELUDE + setup + _ENDING.format(look=look))


def _flag(name: str, extra: str = "") -> Kind:
    how = f"fd = opened(os.O_RDWR | os.{name})"
    return _row(name, how, f"flags(fd), os.lseek(fd, 0, 1){extra}")


_OWN_TERMINAL: Final = """
import pty
if os.getsid(0) != os.getpid():
    os.setsid()
m, s = pty.openpty()
fcntl.ioctl(s, termios.TIOCSCTTY, 0)
own = os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK)
"""

_FLAGS: Final = [
    _row("O_RDONLY", "fd = opened(os.O_RDONLY)", "flags(fd), os.pread(fd, 9, 0)"),
    _row("O_WRONLY", "fd = opened(os.O_WRONLY)", "flags(fd), os.pwrite(fd, b's', 0)"),
    _row(
        "O_RDWR, and the position",
        "fd = opened(os.O_RDWR); os.lseek(fd, 7, 0)",
        "flags(fd), os.lseek(fd, 0, 1)",
    ),
    _row(
        "O_NOFOLLOW",
        "fd = opened(os.O_RDWR | os.O_NOFOLLOW)",
        "flags(fd)",
        "lost",
        "F_GETFL no longer tells it; it counts only while a file is opened",
    ),
    *(
        _flag(name)
        for name in (
            "O_APPEND",
            "O_NONBLOCK",
            "O_DSYNC",
            "O_SYNC",
            "O_DIRECT",
            "O_NOATIME",
            "O_CLOEXEC",
            "O_CREAT",
            "O_TRUNC",
            "O_NOCTTY",
            "O_LARGEFILE",
        )
    ),
    _row(
        "O_EXCL", "fd = os.open('new', os.O_RDWR | os.O_CREAT | os.O_EXCL)", "flags(fd)"
    ),
    _row(
        "O_DIRECTORY",
        "fd = os.open('.', os.O_RDONLY | os.O_DIRECTORY)",
        "flags(fd), os.listdir(fd)",
    ),
    _row(
        "O_ASYNC",
        "fd = opened(os.O_RDWR); fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)",
        "flags(fd) & os.O_ASYNC",
    ),
    _row(
        "FD_CLOEXEC",
        "fd = opened(os.O_RDWR); os.set_inheritable(fd, True)",
        "os.get_inheritable(fd)",
    ),
    _row("O_PATH", "fd = opened(os.O_PATH)", "flags(fd), os.fstat(fd).st_size"),
    _row(
        "O_PATH of a symbolic link",
        "os.symlink('to', 'link')\nfd = os.open('link', os.O_PATH | os.O_NOFOLLOW)",
        "os.readlink('', dir_fd=fd)",
    ),
    Kind("O_PATH of a deleted symbolic link", "refused", "By the rehearsal."),
    _row(
        "O_PATH of a folder",
        "fd = os.open('.', os.O_PATH | os.O_DIRECTORY)",
        "flags(fd), os.listdir(f'/proc/self/fd/{fd}')",
    ),
    Kind("O_PATH of a socket's name", "refused", "By CRIU."),
    _row(
        "O_PATH of a device",
        "fd = os.open('/dev/zero', os.O_PATH)",
        "flags(fd), os.fstat(fd).st_rdev",
    ),
    _row(
        "O_TMPFILE (tempfile.TemporaryFile)",
        "import tempfile\nfile = tempfile.TemporaryFile(dir='.')\n"
        "file.write(b'kept'); file.flush()",
        "os.pread(file.fileno(), 9, 0), file.tell(), file.write(b'') or file.flush()",
    ),
    _row(
        "O_TMPFILE | O_EXCL",
        "fd = os.open('.', os.O_TMPFILE | os.O_EXCL | os.O_RDWR)\n"
        "os.write(fd, b'kept')",
        "os.pread(fd, 9, 0), os.lseek(fd, 0, 1)",
    ),
    _row(
        "O_TMPFILE that is given a name later",
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(fd, b'kept')\n"
        "names = iter(['', 'a'])\n"
        "def named():\n"
        "    name = next(names)\n"
        "    if not name:\n        return 'kept'\n"
        "    os.link(f'/proc/self/fd/{fd}', name, dst_dir_fd=os.open('.', 0))\n"
        "    with open(name) as file:\n        return file.read()",
        "named()",
    ),
    _row(
        "O_TMPFILE that was given a name, and is still open",
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR)\n"
        "os.link(f'/proc/self/fd/{fd}', 'a', dst_dir_fd=os.open('.', 0))",
        "os.path.samestat(os.fstat(fd), os.stat('a'))",
        "refused",
    ),
]

_TYPES: Final = [
    _row(
        "folder, read half way",
        "for n in range(50): made(str(n))\nscan = os.scandir('.'); next(scan)",
        "True",
    ),
    _row(
        "deleted file",
        "fd = gone(opened(os.O_RDWR))",
        "os.pread(fd, 99, 0), os.fstat(fd).st_nlink",
    ),
    _row(
        "deleted file with another name",
        "fd = opened(os.O_RDWR); os.link('file', 'other'); os.unlink('file')",
        "os.pread(fd, 99, 0), os.path.samestat(os.fstat(fd), os.stat('other'))",
        "refused",
        "A library that uv or conda has replaced while it is in use, and still has in "
        "its cache, is one. A semaphore of sem_open is kept.",
    ),
    _row(
        "deleted folder",
        "os.mkdir('sub'); fd = os.open('sub', os.O_RDONLY); os.rmdir('sub')",
        "os.listdir(fd)",
    ),
    _row(
        "deleted working folder",
        "os.mkdir('sub'); os.chdir('sub'); os.rmdir('../sub')",
        "os.listdir('.')",
    ),
    _row(
        "renamed file",
        "fd = opened(os.O_RDWR); os.rename('file', 'new')",
        "os.pread(fd, 99, 0), os.readlink(f'/proc/self/fd/{fd}')[-3:]",
    ),
    _row(
        "file with holes",
        "fd = opened(os.O_RDWR); os.truncate(fd, 1 << 30)",
        "os.fstat(fd).st_blocks, os.fstat(fd).st_size",
    ),
    _row(
        "FIFO with unread data",
        "os.mkfifo('fifo'); fd = os.open('fifo', os.O_RDWR | os.O_NONBLOCK)\n"
        "os.write(fd, b'unread')",
        "os.write(fd, b'') or os.read(fd, 99), os.write(fd, b'unread')",
    ),
    _row(
        "FIFO enlarged with F_SETPIPE_SZ, and full",
        "os.mkfifo('fifo'); fd = os.open('fifo', os.O_RDWR | os.O_NONBLOCK)\n"
        "fcntl.fcntl(fd, 1031, 1 << 18); os.write(fd, b'x' * (1 << 18))",
        "fcntl.fcntl(fd, 1032), len(os.read(fd, 1 << 18)),"
        " os.write(fd, b'x' * (1 << 18))",
    ),
    _row(
        "FIFO enlarged with F_SETPIPE_SZ, and empty",
        "os.mkfifo('fifo'); fd = os.open('fifo', os.O_RDWR | os.O_NONBLOCK)\n"
        "fcntl.fcntl(fd, 1031, 1 << 18)",
        "fcntl.fcntl(fd, 1032)",
    ),
    _row(
        "FIFO made smaller with F_SETPIPE_SZ",
        "os.mkfifo('fifo'); fd = os.open('fifo', os.O_RDWR | os.O_NONBLOCK)\n"
        "fcntl.fcntl(fd, 1031, 4096)",
        "fcntl.fcntl(fd, 1032)",
    ),
    _row(
        "deleted FIFO",
        "os.mkfifo('fifo')\n"
        "fd = gone(os.open('fifo', os.O_RDWR | os.O_NONBLOCK), 'fifo')\n"
        "os.write(fd, b'unread')",
        "os.read(fd, 99), os.write(fd, b'unread')",
    ),
    _row(
        "pipe with unread data",
        "r, w = os.pipe(); os.write(w, b'unread')",
        "os.read(r, 99), os.write(w, b'unread')",
    ),
    _row(
        "pipe enlarged with F_SETPIPE_SZ, and full",
        "r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 18)\n"
        "os.write(w, b'x' * (1 << 18))",
        "fcntl.fcntl(r, 1032), len(os.read(r, 1 << 18)), os.write(w, b'x' * (1 << 18))",
    ),
    _row(
        "pipe enlarged with F_SETPIPE_SZ, and empty",
        "r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 18)",
        "fcntl.fcntl(r, 1032)",
    ),
    Kind("FIFO in packet mode (O_DIRECT)", "refused", "By the rehearsal."),
    Kind("pipe in packet mode (O_DIRECT)", "refused", "By CRIU."),
    *(
        _row(
            f"/dev/{name}",
            f"fd = os.open('/dev/{name}', os.O_RDWR)",
            "flags(fd), os.fstat(fd).st_rdev",
        )
        for name in ("null", "zero", "full", "random", "urandom")
    ),
    _row(
        "pseudo-terminal with unread data",
        "import pty; m, s = pty.openpty(); os.write(s, b'unread')",
        "os.read(m, 99), os.ttyname(s), os.write(s, b'unread')",
    ),
    _row(
        "/dev/tty",
        f"{_OWN_TERMINAL}os.write(own, b'unread')",
        "flags(own), os.get_inheritable(own), os.read(m, 99), os.tcgetpgrp(own) > 0, "
        "os.write(own, b'unread')",
        note="It is open as `/dev/pts/N` afterwards: the same terminal.",
    ),
    _row(
        "/dev/tty, watched by epoll",
        f"{_OWN_TERMINAL}watch = select.epoll(); watch.register(own, select.EPOLLIN)",
        "watch.poll(0)",
        "refused",
        "As some full-screen programs in Go have it, while they run.",
    ),
    _row("/dev/ptmx", "m = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)", "flags(m)"),
    *(
        _row(
            f"memfd{label}",
            f"fd = os.memfd_create('m', os.MFD_ALLOW_SEALING); os.write(fd, b'kept')\n"
            f"fcntl.fcntl(fd, 1033, {seals})",
            "fcntl.fcntl(fd, 1034), os.pread(fd, 9, 0)",
        )
        for label, seals in (
            (", unsealed", 0),
            (" with F_SEAL_SEAL", 1),
            (" with F_SEAL_SHRINK", 2),
            (" with F_SEAL_GROW", 4),
            (" with F_SEAL_WRITE", 8),
            (" with F_SEAL_FUTURE_WRITE", 16),
            (" with all seals", 31),
        )
    ),
    _row(
        "memfd with F_SEAL_EXEC",
        "fd = checked(libc.memfd_create(b'm', 2)); os.write(fd, b'kept')\n"
        "fcntl.fcntl(fd, 1033, 0x20)",
        "fcntl.fcntl(fd, 1034), os.pread(fd, 9, 0)",
    ),
]

_OWN: Final = """
    attr/current autogroup auxv cgroup clear_refs cmdline comm coredump_filter
    cpuset environ fd fdinfo io limits loginuid maps mem mountinfo mounts mountstats
    net/tcp ns numa_maps oom_adj oom_score oom_score_adj pagemap personality root
    sched schedstat sessionid smaps smaps_rollup stat statm status syscall task
    timens_offsets timers timerslack_ns uid_map wchan
"""

_OF_PROCESSES: Final = [
    *(
        _row(
            f"/proc/self/{name}, read",
            f"try:\n    fd = os.open('/proc/self/{name}', os.O_RDONLY)\n"
            "except OSError:\n    fd = 0\n"
            "def begins():\n    try:\n        return os.read(fd, 0)\n"
            "    except OSError as error:\n        return error.errno",
            "flags(fd), os.readlink(f'/proc/self/fd/{fd}'), begins()",
        )
        for name in _OWN.split()
        if name != "clear_refs"
    ),
    _row(
        "/proc/self/mem as Julia has it",
        "buffer = ctypes.create_string_buffer(b'mine')\n"
        "fd = os.open('/proc/self/mem', os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)",
        "os.pread(fd, 4, ctypes.addressof(buffer)), "
        "os.pwrite(fd, b'mine', ctypes.addressof(buffer))",
    ),
    _row(
        "/proc of the parent, read",
        "fd = os.open(f'/proc/{os.getppid()}/stat', 0)",
        "len(os.pread(fd, 99, 0)) > 0",
    ),
    *(
        Kind(name, "refused", "By the rehearsal.")
        for name in (
            "/proc of the init",
            "/proc/self/comm and the like, written",
            "memory of another process",
            "what is open of /proc of a program that has ended",
        )
    ),
    _row("/proc/meminfo", "fd = os.open('/proc/meminfo', 0)", "os.pread(fd, 8, 0)"),
    _row(
        "/proc/sys",
        "fd = os.open('/proc/sys/kernel/hostname', 0)",
        "os.pread(fd, 8, 0)",
    ),
    _row(
        "/sys",
        "fd = os.open('/sys/kernel/mm/transparent_hugepage/enabled', 0)",
        "os.pread(fd, 999, 0)",
    ),
]

_SET: Final = [
    _row(
        "F_SETOWN and F_SETSIG of a pipe",
        "r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, os.getpid())\n"
        "fcntl.fcntl(r, 10, signal.SIGUSR1)",
        "fcntl.fcntl(r, fcntl.F_GETOWN) == os.getpid(), fcntl.fcntl(r, 11)",
    ),
    _row(
        "F_SETOWN and F_SETSIG of a file",
        "fd = opened(os.O_RDWR); fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())\n"
        "fcntl.fcntl(fd, 10, signal.SIGUSR1)",
        "fcntl.fcntl(fd, fcntl.F_GETOWN) == os.getpid(), fcntl.fcntl(fd, 11)",
        "lost",
        "plain files send no signals",
    ),
    _row(
        "F_SETLEASE, for reading",
        "fd = opened(os.O_RDONLY); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        "fcntl.fcntl(fd, fcntl.F_GETLEASE)",
    ),
    _row(
        "F_SETLEASE, for writing",
        "fd = opened(os.O_RDWR); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)",
        "fcntl.fcntl(fd, fcntl.F_GETLEASE)",
        "refused",
    ),
    _row(
        "F_NOTIFY (dnotify)",
        "got = []; signal.signal(signal.SIGIO, lambda *_: got.append(1))\n"
        "fd = os.open('.', 0); fcntl.fcntl(fd, fcntl.F_NOTIFY,"
        " fcntl.DN_CREATE | fcntl.DN_MULTISHOT)\nnames = iter('ab')\n"
        "def told():\n    got.clear(); made(next(names)); time.sleep(0.01)\n"
        "    return len(got)",
        "told()",
        "lost",
        "use inotify",
    ),
    _row(
        "F_SET_RW_HINT",
        "fd = opened(os.O_RDWR)\nfcntl.fcntl(fd, 1036, struct.pack('Q', 2))",
        "fcntl.fcntl(fd, 1035, bytes(8))",
    ),
    _row(
        "lock: flock",
        "fd = opened(os.O_RDWR); fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "other = os.open('file', os.O_RDWR)\n"
        "def free():\n"
        "    try: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except OSError: return False\n    return True",
        "free()",
    ),
    _row(
        "lock: POSIX (fcntl.lockf)",
        "fd = opened(os.O_RDWR); fcntl.lockf(fd, fcntl.LOCK_EX, 3, 2)\n"
        "def locks():\n    pid = os.fork()\n    if not pid:\n"
        "        got = fcntl.fcntl(fd, fcntl.F_GETLK,"
        " struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))\n"
        "        os._exit(struct.unpack('hhqqi4x', got)[0])\n"
        "    return os.waitpid(pid, 0)[1]",
        "locks()",
    ),
    _row(
        "lock: POSIX, of a file that is mapped",
        "fd = opened(os.O_RDWR); mapped = mmap.mmap(fd, 4)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, 3, 2); fcntl.lockf(fd, fcntl.LOCK_SH, 0, 9)\n"
        "def locks():\n    pid = os.fork()\n    if not pid:\n"
        "        for start in (3, 9, 2):\n"
        "            try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)\n"
        "            except OSError: pass\n"
        "            else: os._exit(start)\n"
        "        os._exit(0)\n"
        "    return os.waitpid(pid, 0)[1]",
        "locks()",
    ),
    _row(
        "lock: POSIX, of an inherited file",
        "fd = opened(os.O_RDWR); ready, done = os.pipe()\n"
        "if not os.fork():\n    fcntl.lockf(fd, fcntl.LOCK_EX, 3, 2)\n"
        "    os.write(done, b'x'); signal.pause()\n"
        "os.read(ready, 1)",
        "struct.unpack('hhqqi4x', fcntl.fcntl(fd, fcntl.F_GETLK,"
        " struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)))",
    ),
    _row(
        "lock: of the open file (OFD)",
        "fd = opened(os.O_RDWR); other = os.open('file', os.O_RDWR)\n"
        "lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 2, 3, 0)\n"
        "fcntl.fcntl(fd, 37, lock)",
        "fcntl.fcntl(other, 36, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))",
    ),
]

_EVENTS: Final = [
    _row(
        "eventfd",
        "fd = os.eventfd(5)",
        "os.eventfd_read(fd), os.eventfd_write(fd, 5), flags(fd)",
    ),
    _row("EFD_NONBLOCK", "fd = os.eventfd(0, os.EFD_NONBLOCK)", "flags(fd)"),
    _row(
        "EFD_SEMAPHORE",
        "fd = os.eventfd(9, os.EFD_SEMAPHORE)",
        "info(fd, 'eventfd-sem')",
        "refused",
    ),
    _row(
        "eventfd that is full",
        "fd = os.eventfd(0)\nos.eventfd_write(fd, (1 << 64) - 2)",
        "info(fd, 'eventfd-count')",
        "refused",
    ),
    *(
        _row(
            f"timerfd of {clock}",
            f"fd = libc.timerfd_create({number}, 0)\n"
            "libc.timerfd_settime(fd, 0, struct.pack('4q', 1000, 0, 1000, 0), None)",
            "info(fd, 'clockid', 'ticks', 'settime', 'it_interval')",
        )
        for clock, number in (
            ("CLOCK_REALTIME", 0),
            ("CLOCK_MONOTONIC", 1),
            ("CLOCK_BOOTTIME", 7),
        )
    ),
    _row(
        "timerfd at a given time",
        "fd = libc.timerfd_create(0, 0)\n"
        "libc.timerfd_settime(fd, 1, struct.pack('4q', 0, 0, 1 << 34, 0), None)",
        "info(fd, 'clockid', 'ticks', 'settime', 'it_interval')",
    ),
    _row(
        "timerfd that has expired",
        "fd = libc.timerfd_create(1, os.O_NONBLOCK)\n"
        "libc.timerfd_settime(fd, 0, struct.pack('4q', 0, 0, 0, 1), None)\n"
        "time.sleep(0.01)",
        "select.select([fd], [], [], 0)[0] == [fd]",
    ),
    _row(
        "timerfd with an interval that has expired",
        "fd = libc.timerfd_create(1, os.O_NONBLOCK)\n"
        "libc.timerfd_settime(fd, 0, struct.pack('4q', 0, 10**7, 0, 1), None)\n"
        "time.sleep(0.05)",
        "len(os.read(fd, 8)), select.select([fd], [], [], 1)[0] == [fd]",
    ),
    _row(
        "timerfd at a given time that has been read",
        "fd = libc.timerfd_create(1, 0)\n"
        "libc.timerfd_settime(fd, 1, struct.pack('4q', 0, 0, 1, 0), None)\n"
        "os.read(fd, 8)",
        "select.select([fd], [], [], 0)[0] == [fd]",
    ),
    _row(
        "signalfd",
        "signal.pthread_sigmask(0, {10})\n"
        "fd = libc.signalfd(-1, struct.pack('Q', 1 << 9), 0)\nos.kill(os.getpid(), 10)",
        "info(fd, 'sigmask'), select.select([fd], [], [], 0)[0] == [fd]",
    ),
    *(
        _row(
            f"epoll with {name}",
            f"r, w = os.pipe(); os.write(w, b'x')\nfd = select.epoll()\n"
            f"fd.register(r, select.EPOLLIN | {flag})",
            "fd.poll(0) == [(r, 1)], info(fd.fileno(), 'tfd')",
        )
        for name, flag in (
            ("a pipe", "0"),
            ("EPOLLET", "select.EPOLLET"),
            ("EPOLLEXCLUSIVE", "select.EPOLLEXCLUSIVE"),
        )
    ),
    _row(
        "epoll with EPOLLONESHOT that has fired",
        "r, w = os.pipe(); os.write(w, b'x')\nfd = select.epoll()\n"
        "fd.register(r, select.EPOLLIN | select.EPOLLONESHOT); fd.poll(0)",
        "fd.poll(0)",
    ),
    _row(
        "epoll in an epoll",
        "r, w = os.pipe(); os.write(w, b'x')\n"
        "one = select.epoll(); one.register(r, 1)\n"
        "fd = select.epoll(); fd.register(one.fileno(), 1)",
        "len(fd.poll(0))",
    ),
    _row("pidfd of itself", "fd = os.pidfd_open(os.getpid())", "info(fd, 'Pid')"),
    _row(
        "pidfd of a child",
        "pid = os.fork()\nif not pid: signal.pause()\nfd = os.pidfd_open(pid)",
        "info(fd, 'Pid'), select.select([fd], [], [], 0)[0]",
    ),
]

_WATCH: Final = """
IN_CREATE, IN_MODIFY, IN_ONESHOT = 0x100, 2, 1 << 31
fd = libc.inotify_init1(os.O_NONBLOCK)
def watched(path, mask):
    return checked(libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)))
def told():
    try:
        data = os.read(fd, 9999)
    except BlockingIOError:
        return []
    found = []
    while data:
        wd, mask, cookie, size = struct.unpack_from("iIII", data)
        found.append((wd, hex(mask)))
        data = data[16 + size:]
    return found
"""
_WATCHES: Final = [
    _row(
        "inotify on a folder",
        _WATCH + "watched('.', IN_CREATE)\nnames = iter('ab')",
        "made(next(names)) and told()",
    ),
    _row(
        "inotify on a file", _WATCH + "watched(made(), IN_MODIFY)", "made() and told()"
    ),
    _row(
        "IN_EXCL_UNLINK", _WATCH + "watched('.', IN_CREATE | 0x04000000)", "masks(fd)"
    ),
    _row("IN_ONESHOT", _WATCH + "watched('.', IN_CREATE | IN_ONESHOT)", "masks(fd)"),
    _row(
        "inotify with unread events",
        _WATCH + "watched('.', IN_CREATE)\nmade()",
        "told()",
        "lost",
        "what happened just before a suspend may not be told",
    ),
    _row(
        "inotify on a deleted file",
        _WATCH + "f = opened(os.O_RDWR); watched('file', IN_MODIFY); os.unlink('file')",
        "told(), os.pwrite(f, b'x', 0), told()",
        "refused",
    ),
    _row(
        "inotify in /proc, /sys or /dev/pts",
        _WATCH + "watched('/dev/pts', IN_CREATE)",
        "told()",
        "refused",
    ),
    _row(
        "inotify on a deleted file of which nothing is open",
        _WATCH + "watched(made(), IN_MODIFY); os.unlink('file')",
        "masks(fd)",
    ),
]

_MAPPINGS: Final = [
    _row(
        "mapping of a deleted file, shared",
        "fd = opened(os.O_RDWR)\nm = mmap.mmap(fd, 13)\nm[:4] = b'mine'; gone(fd)",
        "m[:], os.pread(fd, 99, 0)",
    ),
    _row(
        "mapping, locked (mlock)",
        "fd = opened(os.O_RDWR)\nm = mmap.mmap(fd, 13)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "checked(libc.mlock(ctypes.c_void_p(at), 13))\n"
        "def locked():\n    with open('/proc/self/status') as lines:\n"
        "        return [one for one in lines if one.startswith('VmLck')]",
        "locked()",
    ),
]

_OTHERS: Final = [
    _row("fanotify", "fd = checked(libc.fanotify_init(0, 0))", "flags(fd)", "refused"),
    Kind("/dev/kmsg", "kept"),
    Kind("other devices (GPUs: see there)", "refused"),
    _row(
        "mapping, MAP_LOCKED and MAP_POPULATE",
        "fd = opened(os.O_RDWR)\n"
        "m = mmap.mmap(fd, 13, mmap.MAP_SHARED | 0x2000 | mmap.MAP_POPULATE)",
        "m[:]",
    ),
    _row(
        "mapping of a library that has been deleted",
        "fd = opened(os.O_RDONLY)\nm = mmap.mmap(fd, 13, mmap.MAP_PRIVATE, 1)\n"
        "os.close(fd); os.unlink('file')",
        "m[:]",
    ),
    _row(
        "two descriptors of one open file (dup)",
        "one = opened(os.O_RDWR); two = os.dup(one); os.lseek(one, 5, 0)",
        "os.lseek(two, 0, 1)",
    ),
]

KINDS: list[Kind] = [
    *_OTHERS,
    *_FLAGS,
    *_TYPES,
    *_OF_PROCESSES,
    *_SET,
    *_EVENTS,
    *_WATCHES,
    *_MAPPINGS,
]
