"""``make demo-check``: a scripted user over the real proxy, three suspends and resumes.

The user logs in, starts a server, fits a model in a kernel, runs ``top`` in a terminal,
keeps a websocket open and goes away. The service must find the session idle and
suspend it by itself; a visit must bring all of it back. Prints what each step took.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

from demo import processes
from demo.admin import Admin
from demo.stack import Stack
from demo.user import Kernel, Server, User, UserError, read_terminal

CYCLES = 3
SETTINGS: dict[str, Any] = {
    "idle_after": 6,
    "sample_interval": 1,
    # At a first start Python compiles, and writes that, and the work of the last
    # minute counts: nobody shall wait here for that to be over.
    "options": {"busy_cpu_percent": 100, "busy_data_rate": 1_000_000},
}

LOAD = """
import os, numpy as np, pandas as pd
from sklearn.ensemble import RandomForestClassifier
rng = np.random.default_rng(7)
frame = pd.DataFrame(rng.normal(size=(20_000, 12)))
label = (frame.sum(axis=1) > 0).astype(int)
model = RandomForestClassifier(n_estimators=40, random_state=7).fit(frame, label)
before = model.predict_proba(frame)[:, 1]
ballast = rng.normal(size=(32 << 20) // 8)
visits = 0
print(os.getpid(), before.sum())
"""

LOOK = """
visits += 1
same = (model.predict_proba(frame)[:, 1] == before).all()
print(os.getpid(), before.sum(), same, visits)
"""


def check(folder: Path) -> int:
    """Play the user; returns the exit status."""
    began = time.monotonic()
    with Stack(folder, **SETTINGS) as stack:
        try:
            rows = _play(stack)
        except Exception:
            for part in ("agent", "hub"):
                print(f"--- end of {part}'s log ---\n{stack.log(part)[-6000:]}")
            raise
    _print(rows, time.monotonic() - began)
    return 0


def _play(stack: Stack) -> list[dict[str, Any]]:
    admin = Admin(stack)
    user = User.arrived(stack, "ada")
    server = user.server()
    kernel = server.start_kernel()
    kernel.connect()
    first = kernel.run(LOAD).text.split()
    terminal = server.start_terminal()
    pids = terminal_pids(server, terminal)
    print(f"kernel {kernel.id} is process {first[0]}; terminal {terminal} runs top")
    return [
        _cycle(stack, admin, user, server, kernel, first, terminal, pids, n)
        for n in range(1, CYCLES + 1)
    ]


def terminal_pids(server: Server, terminal: str) -> str:
    """Start ``top`` in the terminal; returns the shell's and top's pids."""
    with server.websocket(f"terminals/websocket/{terminal}") as ws:
        line = "top -d 1 & echo pids=$$,$!=; fg\r"
        ws.send(json.dumps(["set_size", 30, 100]))
        ws.send(json.dumps(["stdin", line]))
        seen = read_terminal(ws, until="load average")
    found = re.search(r"pids=(\d+,\d+)=", seen)
    if not found:
        raise UserError(f"no pids in the terminal: {seen!r}")
    return found.group(1)


def _cycle(
    stack: Stack,
    admin: Admin,
    user: User,
    server: Server,
    kernel: Kernel,
    first: list[str],
    terminal: str,
    pids: str,
    number: int,
) -> dict[str, Any]:
    tree = _only(stack.trees())
    held = _memory(stack)
    logins = user.logins
    left = time.monotonic()
    admin.wait(user.name, phase="suspended", seconds=90)
    idle = time.monotonic() - left
    _processes_are_gone(stack, tree)
    kernel.close()

    back = time.monotonic()
    user.visit(f"{server.prefix}lab")
    resumed = time.monotonic() - back
    kernels = [k["id"] for k in server.json("GET", "kernels")]
    _same("kernels", kernels, [kernel.id])
    kernel.connect()
    at = time.monotonic()
    seen = kernel.run(LOOK).text.split()
    cell = time.monotonic() - at
    _same("process, sum, model, visits", seen, [*first, "True", str(number)])
    terminal_lives(server, terminal, pids)
    _same("logins", user.logins, logins)
    saved = admin.session(user.name)["last_suspend"]
    return {
        "cycle": number,
        "held": held,
        "logical": saved["logical_bytes"],
        "stored": saved["stored_bytes"],
        "idle": idle,
        "steps": {s["step"]: s["seconds"] for s in saved["steps"]},
        "frozen": saved["frozen_seconds"],
        "resume": resumed,
        "cell": cell,
    }


def _processes_are_gone(stack: Stack, tree: dict[str, Any]) -> None:
    left = _memory(stack)
    if processes.alive(tree["init_pid"]) or left:
        raise UserError(f"called suspended, but its processes hold {left} bytes")


def _memory(stack: Stack) -> int:
    """Bytes of memory that sessions of this stack hold (proportional)."""
    held = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit():
                continue
            environ = (entry / "environ").read_bytes()
            if b"JUPYTERHUB_SERVICE_PREFIX=/user/" not in environ:
                continue
            if str(stack.folder).encode() in environ:
                rollup = (entry / "smaps_rollup").read_text()
                held += int(re.search(r"Pss:\s+(\d+)", rollup).group(1)) * 1024  # type: ignore[union-attr]
    return held


def terminal_lives(server: Server, terminal: str, pids: str) -> None:
    """``top`` still draws; ended, the shell answers under its old pid."""
    shell, top = pids.split(",")
    with server.websocket(f"terminals/websocket/{terminal}") as ws:
        read_terminal(ws, until="load average")
        ws.send(json.dumps(["stdin", "\x1a"]))  # Ctrl-Z: top is still its child
        time.sleep(0.5)
        ws.send(json.dumps(["stdin", "echo alive=$$,$(pgrep -P $$ -x top)=; fg\r"]))
        read_terminal(ws, until=f"alive={shell},{top}=")
        read_terminal(ws, until="load average")


def _only(trees: list[dict[str, Any]]) -> dict[str, Any]:
    if len(trees) != 1:
        raise UserError(f"one session expected, found {trees}")
    return trees[0]


def _same(what: str, seen: object, wanted: object) -> None:
    if seen != wanted:
        raise UserError(f"{what}: {seen!r} instead of {wanted!r}")


def _print(rows: list[dict[str, Any]], total: float) -> None:
    def mib(size: int) -> str:
        return f"{size / 2**20:,.0f} MiB"

    steps = list(dict.fromkeys(step for row in rows for step in row["steps"]))
    table = [
        ["", *(f"cycle {row['cycle']}" for row in rows)],
        ["memory the session held", *(mib(row["held"]) for row in rows)],
        ["found idle and suspended after", *(f"{row['idle']:.1f} s" for row in rows)],
        *(
            [f"  {step}", *(f"{row['steps'].get(step, 0):.2f} s" for row in rows)]
            for step in steps
        ),
        ["frozen until it was safe", *(f"{row['frozen']:.2f} s" for row in rows)],
        ["image", *(mib(row["logical"]) for row in rows)],
        ["stored", *(mib(row["stored"]) for row in rows)],
        ["visit until the lab is there", *(f"{row['resume']:.2f} s" for row in rows)],
        ["first cell after it", *(f"{row['cell']:.2f} s" for row in rows)],
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    print()
    for line in table:
        name, *values = line
        cells = (v.rjust(w) for v, w in zip(values, widths[1:], strict=True))
        print("  " + name.ljust(widths[0]) + "  " + "  ".join(cells))
    print(
        f"\n{len(rows)} suspends and resumes: same kernel, process, variables, model,"
        f" terminal and login each time. {total:.0f} s in all."
    )
