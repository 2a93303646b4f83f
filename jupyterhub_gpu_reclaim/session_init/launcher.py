"""Gives a session its own namespaces and cgroups, then becomes its init.

It runs as root (``python3 -I -S launcher.py … -- INIT…``); stdlib only. It never waits
for the session and never stays: the process that becomes pid 1 of the session is
reparented to the machine's own init, so the session outlives the Hub.

Its report, as JSON lines on ``--report-fd``: ``{"pid", "start"}`` of the session's init
(host pid, ticks after boot), then nothing more when the init has been executed; or
``{"error": sentence}``. The end of the pipe is the end of the report.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import grp
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

# <linux/sched.h>, <linux/mount.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000

#: v1 hierarchies that a session gets a group in; ``systemd`` is where a systemd of
#: the legacy layout finds what belongs to a service that it restarts.
V1 = {"memory", "cpu", "cpuacct", "pids", "name=systemd"}
SWEEP_AGE = 300.0  #: seconds; a launch takes a tenth of one
#: keyctl(2), which has another number on each architecture; <linux/keyctl.h>
KEYCTL = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
PERIOD = 100_000  #: microseconds; the kernel's own default for CPU quotas


class LaunchError(Exception):
    """The session cannot be started as requested; the text is a sentence."""


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    os.set_inheritable(options.report_fd, False)
    try:
        if options.machine_mounts:
            enter_machine_mounts()
        join_cgroups(options.cgroup_parent, options.cgroup, options.memory, options.cpu)
        _unshare(CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
        pid = os.fork()
    except (LaunchError, OSError) as error:
        report(options.report_fd, error=_sentence(error))
        return 1
    if pid == 0:
        become_init(options)
    report(options.report_fd, pid=pid, start=start_time(pid))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--cgroup-parent", default="")
    parser.add_argument("--cgroup", default="")
    parser.add_argument("--memory", type=int, default=0, help="bytes, 0: no limit")
    parser.add_argument("--cpu", type=float, default=0.0, help="cores, 0: no limit")
    parser.add_argument("--private-tmp", action="store_true")
    parser.add_argument("--machine-mounts", action="store_true")
    parser.add_argument("init", nargs="+")
    return parser.parse_args(argv)


def report(fd: int, **facts: object) -> None:
    """Write one line of the report; the reader may have gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(fd, json.dumps(facts).encode() + b"\n")


def _sentence(error: Exception) -> str:
    if isinstance(error, LaunchError):
        return str(error)
    return f"The session could not be given namespaces of its own: {error}."


# --- who is who ----------------------------------------------------------------------


def start_time(pid: int) -> int:
    """Start of a process in ticks after boot (``stat`` field 22); 0 when it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = stat.rpartition(b")")[2].split()
    return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])


# --- cgroups -------------------------------------------------------------------------


def hierarchies() -> list[tuple[Path, set[str]]]:
    """Mounted cgroup hierarchies: where, and which v1 controllers (empty: v2)."""
    found: dict[str, tuple[Path, set[str]]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        # One hierarchy may be mounted at several places: its device is the same.
        device, where = before.split()[2], Path(before.split()[4])
        if kind == "cgroup2":
            found.setdefault(device, (where, set()))
        elif kind == "cgroup":
            names = V1.intersection(options.split(","))
            if names:
                found.setdefault(device, (where, names))
    return list(found.values())


def join_cgroups(parent: str, name: str, memory: int, cpu: float) -> None:
    """Move into the session's groups; LaunchError: no hierarchy can hold a limit."""
    if not parent or not name:
        return
    limits = {"memory": memory, "cpu": cpu}
    for mount, controllers in hierarchies():
        group = mount / parent / name
        try:
            if not controllers:
                _delegate(mount, mount / parent)
            group.mkdir(parents=True, exist_ok=True)
            for what in [w for w, limit in limits.items() if limit]:
                if _limit(group, what, limits[what]):
                    limits[what] = 0
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            continue
    missing = [what for what, limit in limits.items() if limit]
    if missing:
        names = " and ".join(missing)
        raise LaunchError(f"This machine's cgroups cannot limit {names} of a session.")


def _delegate(mount: Path, parent: Path) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    for level in (mount, parent):
        for controller in ("memory", "cpu", "pids"):
            with contextlib.suppress(OSError):
                (level / "cgroup.subtree_control").write_text(f"+{controller}")


def _limit(group: Path, what: str, limit: float) -> bool:
    """Set one limit; False if this hierarchy has no such controller."""
    if what == "memory":
        values = {"memory.max": limit, "memory.limit_in_bytes": limit}
    else:
        quota = int(limit * PERIOD)
        values = {"cpu.max": f"{quota} {PERIOD}", "cpu.cfs_quota_us": quota}  # type: ignore[dict-item]
    for file, value in values.items():
        if (group / file).exists():
            (group / file).write_text(str(value))
            return True
    return False


def oom_kills(parent: str, name: str) -> int:
    count = 0
    for mount, _ in hierarchies():
        for file in ("memory.events", "memory.oom_control"):  # of v2, of v1
            with contextlib.suppress(OSError):
                for line in (mount / parent / name / file).read_text().splitlines():
                    word, _, number = line.partition(" ")
                    count += int(number) if word == "oom_kill" else 0
    return count


def remove_cgroups(parent: str, name: str) -> None:
    if not name:
        return
    for mount, _ in hierarchies():
        with contextlib.suppress(OSError):
            (mount / parent / name).rmdir()


def sweep_cgroups(parent: str, age: float = SWEEP_AGE) -> None:
    # A young one may be about to be joined; one that is in use cannot be removed.
    before = time.time() - age
    for mount, _ in hierarchies():
        with contextlib.suppress(OSError):
            for group in (mount / parent).iterdir():
                if group.is_dir() and group.stat().st_ctime < before:
                    with contextlib.suppress(OSError):
                        group.rmdir()


# --- namespaces ----------------------------------------------------------------------


def become_init(options: argparse.Namespace) -> NoReturn:
    """In the child, pid 1 of the new namespace: mounts, then the init itself."""
    try:
        os.setsid()
        leave_keyring()
        # Not before the fork: the launcher must go on seeing the machine's own /proc.
        _unshare(CLONE_NEWNS)
        private_mounts(private_tmp=options.private_tmp)
        os.execv(options.init[0], options.init)  # noqa: S606 - no shell is wanted
    except (LaunchError, OSError) as error:
        report(options.report_fd, error=_sentence(error))
    os._exit(1)


def leave_keyring() -> None:
    """Begin a session keyring: in the Hub's, all sessions would share their keys."""
    # If the kernel has no keys, or forbids them to us and so to our children, there is
    # nothing to leave.
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        return
    done = _libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)
    if done < 0 and ctypes.get_errno() not in {errno.ENOSYS, errno.EPERM}:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter_machine_mounts() -> None:
    """Use the mounts of the machine's init; LaunchError: they may not be entered."""
    # systemd's ``PrivateDevices=`` hides the GPUs from the Hub's unit, and
    # ``PrivateTmp=`` gives it a ``/tmp`` that ends with it.
    machine = os.open("/proc/1/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(machine), os.stat("/proc/self/ns/mnt")):  # noqa: PTH116 - beside fstat
            return
        if _libc.setns(machine, CLONE_NEWNS):
            reason = os.strerror(ctypes.get_errno())
            raise LaunchError(f"The machine's own mounts cannot be entered: {reason}.")
    finally:
        os.close(machine)


def private_mounts(*, private_tmp: bool) -> None:
    """Mount what a session must not share: proc, shared memory, terminals."""
    shm = os.statvfs("/dev/shm")  # noqa: S108 - the system's own
    size = shm.f_blocks * shm.f_frsize
    tty = ""
    with contextlib.suppress(KeyError):  # a machine without that group
        tty = f",gid={grp.getgrnam('tty').gr_gid}"
    # The host is told of none of these, but what it unmounts goes here, too.
    _mount("none", "/", None, MS_REC | MS_SLAVE)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size}")  # noqa: S108
    # Terminals get their numbers back after a restore only in an instance of their own.
    _mount(
        "devpts",
        "/dev/pts",
        "devpts",
        MS_NOSUID | MS_NOEXEC,
        f"newinstance,ptmxmode=0666,mode=0620{tty}",
    )
    if not Path("/dev/ptmx").is_symlink():
        _mount("/dev/pts/ptmx", "/dev/ptmx", None, MS_BIND)
    if private_tmp:
        _mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108


_libc = ctypes.CDLL(None, use_errno=True)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mount(
    source: str, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    done = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    if done:
        number = ctypes.get_errno()
        raise LaunchError(f"Mounting {target} failed: {os.strerror(number)}.")


if __name__ == "__main__":
    sys.exit(main())
