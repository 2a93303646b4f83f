"""Sessions on a real machine with The Littlest JupyterHub, and a power cycle.

Run by ``scripts/tljh-machine`` on the machine itself. Nothing stands in for anything:
the users log in at the machine's own proxy, with passwords, as at TLJH's default
authenticator. Three cycles each of an ordinary user and of an administrator who is
demoted while suspended; both units are started again meanwhile. Then the power is cut
while one session is suspended, one runs, and one runs that has a save point.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from demo.admin import Admin
from demo.user import Kernel, User, UserError
from tests.support.ran import ran

URL = os.environ.get("GPU_RECLAIM_TLJH_URL", "http://127.0.0.1")
PLAIN, BOSS, SAVED, LATE = (
    f"gpu-try-{one}" for one in ("user", "admin", "saved", "late")
)
CYCLES = 3
UNITS = ("jupyterhub-gpu-reclaim-agent", "jupyterhub")
#: Of a Hub and a service that have just been started.
PATIENCE = 180.0
#: What a kernel has, and how it is placed.
LOOK = """
import json, os, re, subprocess
status = open("/proc/self/status").read()
print(json.dumps({
    "x": globals().get("x"),
    "pid": os.getpid(),
    "uid": os.getuid(),
    "groups": len(os.getgroups()),
    "NoNewPrivs": re.search(r"NoNewPrivs:\\s+(.)", status)[1],
    "CapBnd": re.search(r"CapBnd:\\s+(.*)", status)[1],
    "sudo": subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0,
}))
"""


class Machine:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: dict[str, Any] = {"rows": [], "passwords": {}, "looks": {}}
        if file.exists():
            self.seen = json.loads(file.read_text())
        name, _, password = os.environ["GPU_RECLAIM_TLJH_ADMIN"].partition(":")
        self.admin = self.until(lambda: self._signed_in(name, password))

    def _signed_in(self, name: str, password: str) -> Admin:
        user = User(URL, name, password)
        service = f"{URL}/services/gpu-reclaim"
        stack: Any = SimpleNamespace(url=URL, password=password, service_url=service)
        admin = Admin(stack, user)
        admin.sessions()
        return admin

    def until(self, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        until = time.monotonic() + seconds
        while True:
            try:
                if found := look():
                    return found
                why: Any = "it did not come true"
            except (UserError, OSError, KeyError, ValueError) as error:
                why = error
            if time.monotonic() > until:
                raise UserError(f"not in {seconds:.0f} s: {why}")
            time.sleep(1)

    def save(self) -> None:
        """Keep what was seen, for after the power cycle."""
        draft = self.file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(self.seen))
        draft.rename(self.file)
        os.sync()

    def row(self, what: str, work: Callable[[], object]) -> None:
        """Try one thing, and note it, with the text that it returns."""
        begun = time.monotonic()
        try:
            how = str(work() or "as before")
        except Exception as error:
            how = f"FAILED: {error!r}"[:400]
        row = [what, how, f"{time.monotonic() - begun:.0f} s"]
        self.seen["rows"].append(row)
        print("  ".join(row), flush=True)
        self.save()

    # --- users -------------------------------------------------------------------

    def make(self, name: str, *, admin: bool = False) -> User:
        self.admin.user.hub("POST", f"users/{name}", json={"admin": admin})
        self.seen["passwords"].setdefault(name, secrets.token_urlsafe())
        return self.user(name)

    def user(self, name: str) -> User:
        user = User(URL, name, self.seen["passwords"][name])
        self.until(lambda: user.login() or True)
        return user

    def set_admin(self, name: str, to: bool) -> None:
        """As the panel's *Edit User* does it."""
        answer = self.admin.user.hub("PATCH", f"users/{name}", json={"admin": to})
        assert answer.ok, answer.text

    def begin(self, user: User, x: int) -> str:
        user.start_server()
        kernel = user.server().start_kernel()
        with kernel:
            kernel.run(f"x = {x}")
        has = look(kernel)
        self.seen["looks"][user.name] = [kernel.id, has]
        self.admin.wait(user.name, phase="running", seconds=PATIENCE)
        return f"sudo: {has['sudo']}, CapBnd: {has['CapBnd']}"

    def back(self, user: User, **other: Any) -> str:
        """Visit, and compare with what was; the differences that are meant."""
        user.visit(f"/user/{user.name}/lab", seconds=PATIENCE)
        number, had = self.seen["looks"][user.name]
        has = look(self.kernel(user))
        assert has == {**had, **other}, f"had {had}, has {has}"
        self.seen["looks"][user.name] = [number, has]
        return ", ".join(f"{key}: {had[key]} → {has[key]}" for key in other)

    def suspend(self, name: str) -> None:
        self.admin.wait(name, phase="running", seconds=PATIENCE)
        self.admin.suspend(name, seconds=PATIENCE)
        assert not (left := self.processes(name)), f"processes {left} are left"

    def kernel(self, user: User) -> Kernel:
        return user.server().kernel(self.seen["looks"][user.name][0])

    def processes(self, name: str) -> str:
        words = ["pgrep", "--euid", f"jupyter-{name}"]
        return ran(words).stdout

    def restart(self, unit: str) -> None:
        subprocess.run(["systemctl", "restart", unit], check=True)
        self.until(lambda: self.admin.sessions() is not None)


def look(kernel: Kernel) -> dict[str, Any]:
    with kernel:
        told = kernel.run(LOOK).text
    # Beside it IPython may tell that its history's file is newer than a save point.
    return dict(json.loads(told[told.index("{") : told.rindex("}") + 1]))


def before(machine: Machine) -> None:
    """All that is tried until the power is cut, and how things are left for that."""
    plain = machine.make(PLAIN)
    boss = machine.make(BOSS, admin=True)
    users = {"user": plain, "administrator": boss}

    def cycle(user: User, number: int) -> str:
        machine.suspend(user.name)
        other: dict[str, Any] = {}
        if user is boss and number == 1:
            machine.set_admin(BOSS, False)
            groups = machine.seen["looks"][BOSS][1]["groups"] - 1
            other = {"sudo": False, "NoNewPrivs": "1", "groups": groups}
        if number == 2:
            for unit in UNITS:
                machine.restart(unit)
        return machine.back(user, **other)

    for name, user in users.items():
        machine.row(f"{name}: start", lambda u=user: machine.begin(u, 41))
        for number in range(CYCLES):
            what = f"{name}: suspend, resume {number + 1} of {CYCLES}"
            what += ("", "; demoted" if user is boss else "", "; restarts")[number]
            machine.row(what, lambda u=user, n=number: cycle(u, n))

    def with_root() -> str:
        """What it has of root's nobody may have who is no administrator."""
        boss.hub("DELETE", f"users/{BOSS}/server")
        machine.until(lambda: not machine.processes(BOSS))
        machine.set_admin(BOSS, True)
        machine.begin(boss, 41)
        with machine.kernel(boss) as kernel:
            words = ["sudo", "-n", "sleep", "10000"]
            kernel.run(f"import subprocess; root = subprocess.Popen({words})")
        machine.suspend(BOSS)
        machine.set_admin(BOSS, False)
        told = ""
        try:
            machine.back(boss)
        except UserError as error:
            told = str(error)
        assert "rights_changed" in told, told
        machine.set_admin(BOSS, True)
        machine.admin.resume(BOSS)  # what the page's *Try again* does
        machine.admin.wait(BOSS, phase="running", seconds=PATIENCE)
        machine.back(boss)
        return "refused (rights_changed); as before when an administrator again"

    machine.row("administrator: demoted, with a program of root's", with_root)

    def save() -> None:
        user = machine.make(SAVED)
        machine.begin(user, 42)
        machine.admin.call("POST", f"sessions/{SAVED}/-/save", json={})
        machine.until(lambda: machine.admin.session(SAVED)["checkpoint"])
        with machine.kernel(user) as kernel:
            kernel.run("x = 43")

    machine.row("a third one: save point", save)
    machine.row("a fourth one: start", lambda: machine.begin(machine.make(LATE), 44))
    machine.row("user: suspend", lambda: machine.suspend(PLAIN))


def after(machine: Machine) -> None:
    """What has come through the power cut; then all of it is deleted."""

    def late() -> str:
        user = machine.user(LATE)
        user.start_server(seconds=PATIENCE)
        assert user.server().json("GET", "kernels") == []
        return "a new session"

    def chosen() -> str:
        failure = machine.admin.session(SAVED)["failure"]
        assert failure["code"] == "ended_since_saved", failure
        machine.admin.resume(SAVED)  # what its user is asked
        return machine.back(saved)

    def again() -> str:
        machine.suspend(PLAIN)
        return machine.back(plain)

    plain, saved = machine.user(PLAIN), machine.user(SAVED)
    machine.row("power cut: was suspended", lambda: machine.back(plain))
    machine.row("power cut: had a save point", chosen)
    machine.row("power cut: ran", late)
    machine.row("user: suspend, resume", again)
    machine.row("units restarted", lambda: [machine.restart(one) for one in UNITS][:0])
    machine.row("user: is there", lambda: machine.back(plain))
    delete(machine)


def delete(machine: Machine) -> None:
    for name in (PLAIN, BOSS, SAVED, LATE):
        machine.admin.user.hub("DELETE", f"users/{name}/server")
        machine.until(lambda n=name: not machine.processes(n))
        machine.admin.user.hub("DELETE", f"users/{name}")
        words = ["userdel", "--remove", f"jupyter-{name}"]
        subprocess.run(words, check=False, capture_output=True)
    machine.file.unlink(missing_ok=True)


if __name__ == "__main__":
    works = {"before": before, "after": after, "delete": delete}
    this = Machine(Path(sys.argv[1]))
    works[sys.argv[2]](this)
    failed = [row for row in this.seen["rows"] if row[1].startswith("FAILED")]
    print("\n| tried | seen | took |\n|---|---|---|")
    for row in this.seen["rows"]:
        print(f"| {' | '.join(row)} |")
    sys.exit(bool(failed))
