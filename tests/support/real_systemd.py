"""A machine of its own with a real systemd: our agent's unit, and a Hub's as of TLJH.

Namespaces, and a layer over this machine's files; of the agent's unit only what root
may not set without CAP_SYS_RESOURCE is left out. The Hub's units have the lines of
TLJH's that concern rights, and start sessions as our spawner does: an ordinary user's,
and that of an administrator who is none any more at the return.

Prints what was seen of them, as JSON (as root: ``python -m
tests.support.real_systemd``). Another system's files may lie over this machine's, for
its systemd: ``GPU_RECLAIM_SYSTEMD=FOLDER``, made by ``debootstrap --variant=minbase
--include=systemd,systemd-sysv,dbus trixie FOLDER`` on another file system (a tmpfs).
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jupyterhub_gpu_reclaim.checkpoint.kinds.rights import FIELDS
from jupyterhub_gpu_reclaim.hub.local import launch
from jupyterhub_gpu_reclaim.linux import capabilities, procfs
from jupyterhub_gpu_reclaim.session_init import session_init
from jupyterhub_gpu_reclaim.session_init.command_line import (
    InitArguments,
    SystemUser,
    written,
)
from tests.support.agent import Agent, criu_folder, wait_for
from tests.support.process_rights import SHIMMED, TLJH_UNIT, UNIT

SYSTEMD = Path("/lib/systemd/systemd")
ROOT = Path(__file__).parents[2]
#: Of the system, which every user may run.
PYTHON = "/usr/bin/python3"
SECONDS = 120.0
#: Its folder, its control group, other files, what runs in it.
MACHINE = """
echo $$ >"$2/cgroup.procs" && folder=$1 lower=$3 && shift 3 || exit
exec unshare --cgroup --mount --pid --uts --ipc --net --fork --kill-child \\
    env folder="$folder" lower="$lower" sh -ec '
mount -t overlay -o "lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work" \\
    none "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for one in null zero full random urandom tty; do
    touch "dev/$one"; mount --bind "/dev/$one" "dev/$one"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 shm dev/shm
ip link set lo up
mkdir -p old
pivot_root . old
umount -l old
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" </dev/null
' sh "$@"
"""
#: What this machine's root may not set without CAP_SYS_RESOURCE.
DROP_IN = """
[Service]
ExecStart=
ExecStart={command}
WorkingDirectory={root}
Environment=PYTHONPATH={root}
OOMScoreAdjust=0
LimitNOFILE=
Restart=no
"""
SERVICE = """
[Unit]
DefaultDependencies=no
{more}
[Service]
Type=oneshot
RemainAfterExit=yes
WorkingDirectory={root}
Environment=PYTHONPATH={root}
ExecStart={python} -m tests.support.real_systemd {words}
StandardError=append:{state}/errors
# It may lie in /tmp, which the Hub's unit does not see.
BindReadOnlyPaths={root}
"""
#: The machine's own folder, as it sees it.
STATE = Path("/var/lib/story")
PROGRAM = """
import sys, time
while True:
    sys.stdout.write("x"); sys.stdout.flush()
    time.sleep(0.02)
"""
UID, GID, ADMINS = 54321, 54322, 54323
USERS = {
    "user": SystemUser(UID, GID, (GID,), no_new_privileges=True),
    "admin": SystemUser(UID + 1, GID, (GID, ADMINS)),
}
#: What each has at its return.
TODAY = {
    **USERS,
    "admin": USERS["admin"]._replace(groups=(GID,), no_new_privileges=True),
}


def main(words: list[str]) -> None:
    """Make the machine and print its report, or play a part in it."""
    match words:
        case []:
            print(json.dumps(report(), indent=1))
        case ["story"]:
            story()
        case [mode, user]:
            asyncio.run(begin(mode, user))


def report() -> dict[str, Any]:
    """Boot the machine, and wait for what it has to say."""
    with tempfile.TemporaryDirectory(prefix="sys-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for one in ("upper", "work", "root"):
            (folder / one).mkdir()
        _write_units(folder / "upper/etc/systemd/system")
        group = Path("/sys/fs/cgroup/unified")
        group = (group if group.exists() else group.parent) / folder.name
        group.mkdir()
        log = folder / "log"
        told = folder / "upper" / STATE.relative_to("/") / "report.json"
        lower = ":".join(filter(None, [os.environ.get("GPU_RECLAIM_SYSTEMD"), "/"]))
        with log.open("wb") as output:
            machine = subprocess.Popen(
                [
                    *("sh", "-c", MACHINE, "machine", name, str(group), lower),
                    *(str(SYSTEMD), "--system", "--unit=story.service"),
                    *("--log-target=console", "--show-status=no"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            wait_for(lambda: told.exists() or machine.poll() is not None, SECONDS)
            return dict(json.loads(told.read_text()))
        except (AssertionError, OSError):
            sys.stderr.write(log.read_text(errors="replace")[-20000:])
            raise
        finally:
            machine.kill()
            machine.wait()
            _remove(group)


def _remove(group: Path) -> None:
    for path, _, _ in list(os.walk(group, topdown=False)):
        wait_for(lambda: _removed(Path(path)))  # noqa: B023 awaited at once


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):  # its last process is on its way out
        group.rmdir()
    return not group.exists()


def _write_units(folder: Path) -> None:
    drop_ins = folder / f"{UNIT.name}.d"
    drop_ins.mkdir(parents=True)
    (folder.parents[2] / STATE.relative_to("/")).mkdir(parents=True)
    shutil.copy(UNIT, folder)
    agent = Agent(STATE, criu_folder())
    program = [sys.executable, "-m", "jupyterhub_gpu_reclaim.node"]
    if not capabilities.has("SYS_RESOURCE"):
        (folder / "agent.py").write_text(SHIMMED)
        program = [sys.executable, "/etc/systemd/system/agent.py", agent.criu]
        program.append(str(STATE))
    command = " ".join([*program, *agent.words()[1:]])
    (drop_ins / "tests.conf").write_text(DROP_IN.format(command=command, root=ROOT))
    more = f"Wants={UNIT.name}"
    for name, words, lines in (
        ("story", "story", more),
        *((f"{m}-{u}", f"{m} {u}", "") for m in ("start", "hold") for u in USERS),
    ):
        text = SERVICE.format(
            root=ROOT, state=STATE, python=sys.executable, words=words, more=lines
        )
        rights = "" if name == "story" else TLJH_UNIT.replace("[Service]", "")
        (folder / f"{name}.service").write_text(text + rights)
    for name in (
        "tmp.mount",
        "systemd-udevd.service",
        "systemd-tmpfiles-setup.service",
    ):
        (folder / name).symlink_to("/dev/null")


async def begin(mode: str, user: str) -> None:
    """In the Hub's unit: what our spawner does at a start or a return."""
    who = (TODAY if mode == "hold" else USERS)[user]
    arguments = InitArguments(
        f"{mode}-{user}", user, "", STATE.name, mode == "hold", system_user=who
    )
    words = [*launch.PYTHON, session_init.__file__, *written(arguments)]
    if mode == "start":
        words += [
            "--chdir",
            "/tmp",
            "--",
            "/usr/bin/python3",
            "-I",
            "-S",
            "-c",
            PROGRAM,
        ]
    with (STATE / f"{mode}-{user}.out").open("wb") as output:
        await launch.run(
            ["--machine-mounts"],
            words,
            {},
            {"stdout": output, "stderr": output},
            seconds=30,
        )


def story() -> None:
    """On the machine: each session is suspended and comes back."""
    agent = Agent(STATE, "")
    wait_for(agent.is_healthy)
    version = ["systemctl", "--version"]
    done = subprocess.run(version, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = {"systemd": done.stdout.splitlines()[0]}
    seen["agent"] = _rights(agent, None)
    for user in USERS:
        try:
            seen[user] = _cycle(agent, user)
        except Exception as error:
            told = (STATE / "errors").read_text()
            seen[user] = {"error": repr(error), "told": told[-3000:]}
    draft = STATE / "draft.json"
    draft.write_text(json.dumps(seen))
    draft.rename(STATE / "report.json")


def _cycle(agent: Agent, user: str) -> dict[str, Any]:
    old, new = (SimpleNamespace(incarnation=f"{m}-{user}") for m in ("start", "hold"))
    subprocess.run(["systemctl", "start", f"start-{user}"], check=True)
    output = STATE / f"start-{user}.out"
    wait_for(lambda: output.stat().st_size)
    seen = {"had": _rights(agent, old)}
    last = agent.capture(old, f"c-{user}")[-1]
    assert last.get("checkpoint"), last
    path = f"/v1/sessions/{old.incarnation}/release"
    agent.post(path, {"checkpoint": f"c-{user}"}).raise_for_status()
    subprocess.run(["systemctl", "start", f"hold-{user}"], check=True)
    last = agent.restore(new, f"c-{user}")[-1]
    assert last.get("tree"), last
    output = STATE / f"hold-{user}.out"
    size = output.stat().st_size
    wait_for(lambda: output.stat().st_size > size)
    return {**seen, "has": _rights(agent, new)}


def _rights(agent: Agent, place: Any) -> dict[str, str]:
    if place is None:
        words = ["systemctl", "show", "--property=MainPID", "--value", UNIT.name]
        pid = int(subprocess.run(words, capture_output=True, check=True).stdout)
    else:
        init = agent.tree(place)["init_pid"]
        pid = int(procfs.text(init, f"task/{init}/children").split()[0])
        pid = int(procfs.text(pid, f"task/{pid}/children").split()[0])
    status = procfs.status(pid)
    return {name: status[name] for name in sorted({*FIELDS, "Groups"})}


if __name__ == "__main__":
    main(sys.argv[1:])
