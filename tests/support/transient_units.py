"""``systemd-run`` and ``systemctl`` where systemd does not run: transient units alone.

Called by those names. A unit is a process of the user that was asked for; properties
other than its environment do nothing.
"""

import argparse
import os
import pwd
import shlex
import signal
import subprocess
import sys
from pathlib import Path

UNITS = Path("/run/units")


def run() -> int:
    """``systemd-run``: start a unit and return at once."""
    parser = argparse.ArgumentParser()
    for option in ("--unit", "--working-directory", "--slice"):
        parser.add_argument(option)
    for option in ("--uid", "--gid"):
        parser.add_argument(option, type=int)
    parser.add_argument("--property", action="append", default=[])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    properties = dict(each.split("=", 1) for each in args.property)
    lines = Path(properties["EnvironmentFile"]).read_text().splitlines()
    entry = pwd.getpwuid(args.uid)
    env = dict(shlex.split(line)[0].split("=", 1) for line in lines)
    process = subprocess.Popen(
        args.command,
        cwd=args.working_directory,
        env={**env, "HOME": entry.pw_dir, "USER": entry.pw_name},
        user=args.uid,
        group=args.gid,
        extra_groups=os.getgrouplist(entry.pw_name, args.gid),
        start_new_session=True,
    )
    UNITS.mkdir(exist_ok=True)
    (UNITS / args.unit).write_text(str(process.pid))
    return 0


def control() -> int:
    """``systemctl``: what SystemdSpawner asks of it."""
    verb, *units = sys.argv[1:]
    if verb == "--version":
        print("systemd 252 (a stand-in)")
        return 0
    pid = _pid(units[0])
    if verb == "stop" and pid:
        os.killpg(pid, signal.SIGKILL)
        (UNITS / units[0]).unlink()
    return 0 if pid and verb in {"is-active", "stop"} else 3


def _pid(unit: str) -> int:
    """The unit's process; 0: it does not run."""
    try:
        pid = int((UNITS / unit).read_text())
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return 0 if stat.rpartition(")")[2].split()[0] == "Z" else pid


if __name__ == "__main__":
    sys.exit(run() if Path(sys.argv[0]).name == "systemd-run" else control())
