"""A session of another user than root keeps everything that is its user's.

CRIU asks for the limits of each process with prlimit(2), which needs CAP_SYS_RESOURCE
for the processes of another user. Where root lacks it (in many containers), a shim
under CRIU reads them from ``/proc/PID/limits`` instead; where root has it, CRIU runs
as it is. Nothing else stands in for anything here: the init drops root's rights as it
does for the local spawner, and all the rest is the kernel's and CRIU's work.
"""

import atexit
import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.checkpoint.tree.restore import proceed
from jupyterhub_gpu_reclaim.linux import capabilities
from jupyterhub_gpu_reclaim.session_init.command_line import SystemUser
from tests.checkpoint.conftest import REPL, World, fingerprints
from tests.checkpoint.test_cycle import BASH, terminal

UID, GID, GROUPS = 54321, 54322, [54323, 54324]
BECOME = SystemUser(UID, GID, tuple(GROUPS))
#: What the kernel knows of a process's rights.
RIGHTS = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Umask", "Seccomp")

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static const char *const names[RLIM_NLIMITS] = {
    [RLIMIT_CPU] = "Max cpu time", [RLIMIT_FSIZE] = "Max file size",
    [RLIMIT_DATA] = "Max data size", [RLIMIT_STACK] = "Max stack size",
    [RLIMIT_CORE] = "Max core file size", [RLIMIT_RSS] = "Max resident set",
    [RLIMIT_NPROC] = "Max processes", [RLIMIT_NOFILE] = "Max open files",
    [RLIMIT_MEMLOCK] = "Max locked memory", [RLIMIT_AS] = "Max address space",
    [RLIMIT_LOCKS] = "Max file locks", [RLIMIT_SIGPENDING] = "Max pending signals",
    [RLIMIT_MSGQUEUE] = "Max msgqueue size", [RLIMIT_NICE] = "Max nice priority",
    [RLIMIT_RTPRIO] = "Max realtime priority",
    [RLIMIT_RTTIME] = "Max realtime timeout",
};
static long (*real)(long, ...);

__attribute__((constructor)) static void find_real(void) {
    real = dlsym(RTLD_NEXT, "syscall");
}

static rlim64_t value(const char *word) {
    return strcmp(word, "unlimited") ? strtoull(word, NULL, 10) : RLIM64_INFINITY;
}

static long read_limit(long pid, long what, struct rlimit64 *limit) {
    char path[64], line[256], soft[32], hard[32];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%ld/limits", pid);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = !strncmp(line, names[what], strlen(names[what]))
            && sscanf(line + 26, "%31s %31s", soft, hard) == 2;
    if (file)
        fclose(file);
    if (!found)
        return -1;
    limit->rlim_cur = value(soft);
    limit->rlim_max = value(hard);
    return 0;
}

/* CRIU asks with syscall(SYS_prlimit64, pid, what, NULL, &limit). */
long syscall(long number, ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_prlimit64 && a[0] && !a[2] && a[3] && a[1] < RLIM_NLIMITS)
        return read_limit(a[0], a[1], (struct rlimit64 *)a[3]);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""

#: The world's own view of what belongs to its user.
LOOK = """
import fcntl, resource, stat

def look():
    tty_name = os.readlink(f"/proc/{pid}/fd/0")
    return {
        "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "cwd": os.getcwd(),
        "limits": [resource.getrlimit(n) for n in range(16)],
        "tty": [tty_name, *owner(os.stat(tty_name))],
        "named": owner(os.fstat(named.fileno())),
        "deleted": owner(os.fstat(deleted.fileno())),
        "proc": owner(os.stat("/proc/self/fd"))[:2],
    }

def owner(status):
    return [status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)]

def hold():
    global named, deleted
    resource.setrlimit(resource.RLIMIT_NOFILE, (321, 4096))
    named = open("named", "w+")
    deleted = open("deleted", "w+")
    for file in (named, deleted):
        file.write("before ")
        file.flush()
        os.fchmod(file.fileno(), 0o640)
    os.unlink("deleted")
    fcntl.flock(named, fcntl.LOCK_EX)

def go_on():
    for file in (named, deleted):
        file.write("after")
        file.seek(0)
    return [file.read() for file in (named, deleted)]
"""


@functools.cache
def built_shim() -> Path:
    """Made once, for all tests of a program."""
    if shutil.which("gcc") is None:
        pytest.skip("root lacks CAP_SYS_RESOURCE here, and its shim needs gcc")
    folder = Path(tempfile.mkdtemp(prefix="gpu-reclaim-shim-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    source, shim = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, source], check=True)
    return shim


@pytest.fixture
def criu(criu, tmp_path):
    """CRIU for the sessions of any user; with the shim only where it has to be."""
    if capabilities.has("SYS_RESOURCE"):
        return criu
    shim = built_shim()
    loader = tmp_path / "loader"
    loader.write_text(f'#!/bin/sh\nexec {criu.loader} --preload {shim} "$@"\n')
    loader.chmod(0o755)
    return dataclasses.replace(criu, loader=loader)


@pytest.fixture
def home():
    """A folder of the user's, on a path that every user may walk."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-reclaim-user-", dir="/tmp"))
    os.chown(folder, UID, GID)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def world(places, home):
    """A program of the user's, started as the launcher starts a server."""
    # Not our own Python: the user may not be allowed into its folder.
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if python is None:
        pytest.skip("needs a python3 of the system, which every user may run")
    place = places.start(python, "-c", REPL, system_user=BECOME, chdir=str(home))
    place.read_until("port ")
    return World(place, int(place.read_until("\n")))


def rights(place) -> dict[str, list[str]]:
    """The rights of each process of a tree, as the kernel tells them."""
    found = {}
    for process in place.tree.processes:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        kept = [line for line in lines if line.startswith(RIGHTS)]
        found[f"{process.ns_pid} {process.name}"] = kept
    return found


#: A segment that its user may not attach any more.
SEGMENTS = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
def table():
    lines = open("/proc/sysvipc/shm").read().splitlines()[1:]
    return [line.split()[:4] + line.split()[6:11] for line in lines]
number = libc.shmget(0, 8192, 0o1640)
address = libc.shmat(number, None, 0)
ctypes.memmove(address, b"mine", 4)
about = ctypes.create_string_buffer(256)
assert libc.shmctl(number, 2, about) == 0
about[20], about[21] = 0, 0
assert libc.shmctl(number, 1, about) == 0
"""

SOCKETS = """
import struct
def who(one):
    return struct.unpack("=iII", one.getsockopt(1, socket.SO_PEERCRED, 12))
ear = socket.socket(socket.AF_UNIX); ear.bind("listens"); ear.listen()
to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); to.bind("to")
by = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); by.bind("by")
by.sendto(b"waits", "to")
unseen = socket.socket(socket.AF_UNIX); unseen.bind("\\0" + os.getcwd())
unseen.listen()
def owners():
    found = []
    for at in (ear, unseen):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(at.getsockname())
            at.accept()[0].close()
            found.append(who(one))
    return found
ours = socket.create_server(("127.0.0.1", 0))
ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 7)
"""

#: Files in every state, and two of the kernel's.
FILES = """
import ctypes, fcntl, tempfile
unnamed = tempfile.TemporaryFile(dir=".")
lost = open("lost", "w+b")
for file in (unnamed, lost):
    file.write(b"x"); file.flush()
os.unlink("lost")
os.mkfifo("fifo"); fifo = os.open("fifo", os.O_RDWR | os.O_NONBLOCK)
fcntl.fcntl(fifo, fcntl.F_SETPIPE_SZ, 1 << 18); os.write(fifo, b"x" * (1 << 18))
mine = ctypes.create_string_buffer(b"mine")
memory = os.open("/proc/self/mem", os.O_RDWR | os.O_SYNC)
"""
NAMES = {"named", "listens", "to", "by", "fifo"}


def test_cycle_of_another_user_keeps_all_that_is_its_users(world, places, engine, home):
    world(terminal(*BASH))
    for words in (LOOK, "hold(); until('ready>')", SEGMENTS, SOCKETS, FILES):
        world(words)
    world("type_in('x=41; '); begin_sleep()")
    world("type_in('\\x1a')")
    assert "Stopped" in world("until('Stopped')")

    seen, had = world("look()"), rights(world.place)
    assert seen["ids"] == [(UID,) * 3, (GID,) * 3, GROUPS]
    assert seen["cwd"] == str(home)
    assert seen["tty"][0].startswith("/dev/pts/")
    assert seen["tty"][1] == UID
    for lines in had.values():
        assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in lines
        assert "CapEff:\t0000000000000000" in lines
    segments = world("table()")
    assert segments[0][2] == "0"
    assert str(UID) in segments[0]
    owners, defers = world("owners()"), world("ours.getsockopt(6, 9)")
    assert owners == [(world("os.getpid()"), UID, GID)] * 2

    world = engine.cycle(world, places)
    # And twice from one image.
    image = engine.image()
    result = engine.dump(world.place, image.sink)
    opened = fingerprints(world.place)
    for _ in range(2):
        world.place.kill()
        place = places.hold()
        restored = engine.restore(place, image, result, opened=opened)
        proceed(restored, result.stopped)
        world = world.at(place)
        assert rights(place) == had
        assert world("look()") == seen
        assert world("table()") == segments
        assert world("ctypes.string_at(address, 4)") == b"mine"
        assert world("libc.shmat(number, None, 0)") == (1 << 64) - 1
        # Whose a listener is, is what those who connect to it from now on are told.
        assert world("owners()") == owners
        assert world("ours.getsockopt(6, 9)") == defers
        assert world("to.settimeout(9); to.recvfrom(99)") == (b"waits", "by")
        assert world("""
(os.pread(unnamed.fileno(), 9, 0), os.pread(lost.fileno(), 9, 0),
 len(os.read(fifo, 1 << 18)), os.pread(memory, 4, ctypes.addressof(mine)))
""") == (b"x", b"x", 1 << 18, b"mine")

    check_terminal(world)
    assert world("go_on()") == ["before after"] * 2
    assert {path.name for path in home.iterdir()} == NAMES
    assert {path.stat().st_uid for path in home.iterdir()} == {UID}


def check_terminal(world) -> None:
    """It is its user's still, and works."""
    # By its path, so that the owner of the terminal is asked for.
    world("type_in('echo of-$((x + 1)) by-$(id -u) >$(tty)\\n')")
    assert f"of-42 by-{UID}" in world(f"until('by-{UID}')")
    world("type_in('jobs; bg; kill %1; wait %1; echo ended-$?\\n')")
    answer = world("until('ended-143')")
    assert "sleep 1000" in answer
    assert "TIMEOUT" not in answer
    # A child that is born afterwards has no more rights than one before.
    world("type_in('cat /etc/shadow; echo end-$((1 + 1))\\n')")
    assert "Permission denied" in world("until('end-2')")
