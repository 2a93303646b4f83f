"""A real Hub and its proxy beside the card, on which a user's kernel computes.

Sessions are started by the Hub's spawner, judged and saved by the service's own policy,
and visited over the proxy.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from demo.admin import Admin
from demo.stack import Stack
from demo.user import User
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.gpu.conftest import ENVIRONMENT
from tests.support.agent import criu_folder

#: Plays it without a card: everything but what only a card can show.
SWITCH = "GPU_RECLAIM_WITHOUT_CARD"
pytestmark = pytest.mark.timeout(240)
PATIENCE = 90
GIB = 1 << 30
FILE = "notes.txt"

THREAD = """
import threading
go = threading.Event()
def begin():
    go.set()
    threading.Thread(target=work, daemon=True).start()
"""


@dataclass(frozen=True)
class Work:
    """What the kernel holds and computes, and how the service knows of it."""

    setup: str
    look: str  #: tells the process and what it holds
    busy: str  #: the reason why it is not suspended
    on_card: bool = False
    idle_after: int = 10  #: seconds until it is saved
    settings: dict[str, Any] = field(default_factory=dict)


#: The processor is not looked at, so that nothing but the card speaks for the session.
ON_THE_CARD = Work(
    setup=THREAD
    + """
import torch
torch.manual_seed(0)
x = torch.randn(1 << 28, device="cuda")
weights = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
def work():
    done = torch.cuda.Event(blocking=True)
    while go.is_set():
        for _ in range(100):
            weights @ weights
        done.record()
        done.synchronize()
""",
    look="import os; print(os.getpid(), repr(x.sum().item()), repr((x @ x).item()))",
    busy="gpu_busy",
    on_card=True,
    settings={"busy_cpu_percent": None},
)
ON_THE_PROCESSOR = Work(
    setup=THREAD
    + """
import hashlib, random
x = random.Random(0).randbytes(1 << 25)
def work():
    while go.is_set():
        sum(range(100_000))
""",
    look="import os; print(os.getpid(), hashlib.sha256(x).hexdigest())",
    busy="cpu_busy",
)


class Person:
    """Somebody with a notebook's kernel at a Hub."""

    def __init__(self, stack: Stack, name: str, work: Work) -> None:
        self.user = User(stack.url, name, stack.password)
        self.user.login()
        home = stack.folder / "homes" / name
        home.mkdir(parents=True)
        (home / FILE).write_text("What a browser opens where there is no JupyterLab.")
        made = self.user.hub("POST", f"users/{name}/server")
        assert made.status_code in {201, 202}, made.text
        self.server = self.user.server()
        self.visit()
        self.kernel = self.server.start_kernel()
        self.run(work.setup, seconds=120)
        self.first = self.run(work.look)
        self.work = work

    @property
    def name(self) -> str:
        return self.user.name

    def visit(self) -> float:
        """Open one of the server's pages; the seconds until it is there."""
        began = time.monotonic()
        self.user.visit(f"{self.server.prefix}files/{FILE}", seconds=PATIENCE)
        return time.monotonic() - began

    def run(self, code: str, seconds: float = 60) -> str:
        with self.kernel:
            return self.kernel.run(code, seconds=seconds).text

    def finds_all_as_it_was(self) -> None:
        kernels = [one["id"] for one in self.server.json("GET", "kernels")]
        assert kernels == [self.kernel.id]
        assert self.run(self.work.look) == self.first
        assert self.user.logins == 1


@pytest.fixture(scope="module")
def work(request: pytest.FixtureRequest) -> Work:
    if os.environ.get(SWITCH):
        return ON_THE_PROCESSOR
    request.getfixturevalue("driver")
    return ON_THE_CARD


def told(stack: Stack) -> str:
    """How the logs of Hub (with proxy, service and sessions) and agent end."""
    parts = ("agent", "hub")
    return "".join(f"--- {part} ---\n{stack.log(part)[-6000:]}\n" for part in parts)


@contextlib.contextmanager
def logs_of(stack: Stack) -> Iterator[None]:
    """Shown where something fails that tests are prepared with."""
    try:
        yield
    except Exception:
        print(told(stack))
        raise


@pytest.fixture(scope="module")
def stack(folder: Path, work: Work) -> Iterator[Stack]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the agent enters namespaces")
    os.environ.setdefault("GPU_RECLAIM_CRIU", criu_folder())
    made = Stack(
        Path(tempfile.mkdtemp(prefix="hub-", dir=folder)),
        idle_after=work.idle_after,
        sample_interval=1,
        default_url="",
        environment=ENVIRONMENT,
        options=work.settings,
    )
    try:
        with logs_of(made):
            made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Admin:
    with logs_of(stack):
        return Admin(stack)


@pytest.fixture(scope="module")
def person(stack: Stack, work: Work) -> Person:
    with logs_of(stack):
        return Person(stack, "ada", work)


@pytest.fixture(autouse=True)
def logs(stack: Stack) -> Iterator[None]:
    yield
    print(told(stack))


@pytest.fixture(scope="module")
def nvml() -> Iterator[Nvml]:
    made = Nvml()
    yield made
    made.close()


def used(nvml: Nvml) -> int:
    """Bytes of the cards' memory that are not free; 0 where there is no card."""
    return sum(card.total - card.free for card in nvml.measure(time.time() - 1))


def metric(admin: Admin, name: str) -> float:
    url = f"{admin.stack.url}/services/gpu-reclaim/metrics"
    answer = admin.user.http.get(url, headers=admin.headers, timeout=60)
    assert answer.ok, answer.text
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines())
    return float(lines[f"jupyterhub_gpu_reclaim_{name}"])


def wait_for_nothing_but(code: str, admin: Admin, name: str) -> None:
    """Until that is the only reason why it is not suspended."""
    deadline = time.monotonic() + PATIENCE
    while {why["code"] for why in reasons(admin, name)} != {code}:
        assert time.monotonic() < deadline, reasons(admin, name)
        time.sleep(0.2)


def reasons(admin: Admin, name: str) -> list[dict[str, Any]]:
    return list(admin.call("GET", f"sessions/{name}/-/why"))


def shows_its_card(view: dict[str, Any]) -> None:
    (card,) = view["gpus"]
    assert card["name"].startswith("NVIDIA")
    assert card["memory"] > GIB
    assert card["sm_percent"] > 50
    assert view["usage"]["gpu_memory"] == card["memory"]
    assert view["usage"]["gpu_percent"] > 5


def test_kernel_that_computes_unseen_is_saved_by_itself_once_it_rests(
    admin: Admin, person: Person, work: Work, nvml: Nvml
) -> None:
    person.run("begin()")
    wait_for_nothing_but(work.busy, admin, person.name)
    view, held = admin.session(person.name), used(nvml)
    assert view["phase"] == "running"
    assert view["usage"]["busy_kernel"] is None
    if work.on_card:
        shows_its_card(view)
    person.run("go.clear()")
    admin.wait(person.name, phase="suspended", seconds=120)
    assert metric(admin, 'suspends_total{cause="idle"}') == 1
    assert held - used(nvml) >= work.on_card * GIB
    print(f"visited after an idle time: there in {person.visit():.1f} s")
    person.finds_all_as_it_was()


def test_card_of_a_session_that_a_manager_suspends_counts_as_reclaimed(
    admin: Admin, person: Person, work: Work, nvml: Nvml
) -> None:
    person.visit()
    person.finds_all_as_it_was()
    held = used(nvml)
    before = metric(admin, "gpu_seconds_reclaimed_total")
    began = time.monotonic()
    admin.suspend(person.name, seconds=PATIENCE)
    print(f"suspended by a manager in {time.monotonic() - began:.1f} s")
    assert held - used(nvml) >= work.on_card * GIB
    time.sleep(2)
    after = metric(admin, "gpu_seconds_reclaimed_total")
    assert (after > before) == work.on_card
    admin.resume(person.name)
    admin.wait(person.name, phase="running", seconds=PATIENCE)
    person.finds_all_as_it_was()
