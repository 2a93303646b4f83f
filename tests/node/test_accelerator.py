"""GPUs of a session: which cards it may come back on, and when there is no room."""

import contextlib
import fcntl
import os
import signal
import subprocess
import termios
import threading
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import (
    Card,
    CudaState,
    DriverError,
    Memory,
)
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import host, processes, ptrace
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.node import requirements as gpu_world
from jupyterhub_gpu_reclaim.node.operations import gpu as operations_gpu
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
from jupyterhub_gpu_reclaim.node.requirements import GpuCard, Gpus, GpuUse
from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse
from tests.support import gpu
from tests.support.agent import wait_for

A, B, C = (GpuCard(uuid=letter * 32, name="H200") for letter in "abc")
OTHER = GpuCard(uuid="d" * 32, name="A100")
NO_LIMIT = LimitRecord()


def gpus(*cards: GpuCard, driver: str = "580.1", size: int = 100) -> Gpus:
    uses = [GpuUse(pid=302, uuid=cards[0].uuid, bytes=size)]
    return Gpus(driver=driver, cards=list(cards), users=[302], uses=uses)


def codes(there: Gpus, here, free, driver: str = "580.1") -> list[str]:
    return [one.code for one in gpu_world.compare_gpus(there, driver, here, free)]


def test_cards_are_held_by_those_whose_programs_had_memory_there():
    held = gpus(A, B, size=70).joined(gpus(A, size=30)).held()
    assert [(one.uuid, one.name, one.memory) for one in held] == [(A.uuid, A.name, 100)]


def test_another_card_of_the_model_takes_the_place_and_all_are_named():
    moves = gpu_world.plan_moves([A, B], [B, C], {})
    assert sorted(gpu_world.move_pairs(moves)) == [(A.uuid, C.uuid), (B.uuid, B.uuid)]


def test_the_emptiest_card_is_chosen():
    free = {A.uuid: 5, C.uuid: 9}
    assert gpu_world.plan_moves([B], [A, C], free) == {B.uuid: C.uuid}


def test_too_few_cards_of_the_model_are_a_mismatch_that_names_both():
    (found,) = gpu_world.compare_gpus(gpus(A, B), "580.1", [A, OTHER], {})
    assert found.code == "gpu_mismatch"
    assert (
        found.message == "The session needs 2 x H200; here there is 1 x A100, 1 x H200."
    )
    assert codes(gpus(A), [], {}) == ["gpu_mismatch"]


def test_another_driver_is_a_mismatch():
    assert codes(gpus(A), [A], {A.uuid: 200}, "590.2") == ["gpu_driver_mismatch"]


def test_a_card_without_room_is_named_and_one_that_does_not_tell_is_tried():
    assert codes(gpus(A), [A], {A.uuid: 99}) == ["gpu_memory"]
    assert codes(gpus(A), [A], {A.uuid: 100}) == []
    assert codes(gpus(A), [A], {A.uuid: None}) == []


class Cards:
    """What the management library says, as a test wants it."""

    def __init__(self, *cards: CardUse) -> None:
        self.cards = list(cards)

    def measure(self, since: float) -> list[CardUse]:
        return self.cards

    def close(self) -> None:
        """Nothing was opened."""


class BusyCards(Cards):
    """Somebody else looks at them for a while, or for ever."""

    def __init__(self, *cards: CardUse, times: int) -> None:
        super().__init__(*cards)
        self.times = times

    def measure(self, since: float) -> list[CardUse] | None:
        self.times -= 1
        return None if self.times >= 0 else self.cards


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as popen:
        tree = processes.snapshot(os.getpid())
        mine = tuple(p for p in tree.processes if p.pid == popen.pid)
        yield processes.Snapshot(tree.init, mine)
        popen.kill()


def make(
    driver,
    free: int = 1000,
    *,
    pid: int = 0,
    divided: bool = False,
    mps: bool = False,
    **more,
):
    use = [ProcessUse(pid=pid, memory=100, mps=mps)] if pid else []
    card = CardUse(
        uuid=gpu.CARD.uuid,
        name=gpu.CARD.name,
        free=free,
        divided=divided,
        processes=use,
    )
    return Accelerator(
        driver, Cards(card), TimeLimits(gpu_lock=1, dump=1, room=0.05), **more
    )


@pytest.mark.parametrize(
    ("free", "total", "expected"), [(300, 1000, 700), (None, 1000, 1000)]
)
def test_memory_that_is_not_told_counts_as_all_that_is_in_use(
    sleeper, free, total, expected
):
    (process,) = sleeper.processes
    accelerator = told(
        CardUse(
            uuid=gpu.CARD.uuid,
            total=total,
            free=free,
            processes=[ProcessUse(pid=process.pid, memory=None)],
        )
    )
    survey = Survey(users=(process,))
    assert accelerator.describe(survey).bytes() == expected


@pytest.mark.parametrize("known", [True, False])
def test_a_card_that_does_not_tell_who_uses_it_refuses(sleeper, known):
    (process,) = sleeper.processes
    uses = [ProcessUse(pid=process.pid)] if known else None
    accelerator = told(CardUse(uuid=gpu.CARD.uuid, processes=uses))
    with pytest.raises(Refused) as caught:
        accelerator.describe(Survey(users=(process,)))
    assert caught.value.reason is Reason.GPU_DRIVER_SILENT


def told(card: CardUse) -> Accelerator:
    driver = gpu.WellDriver()
    return Accelerator(driver, Cards(card), TimeLimits())


def test_a_user_with_nothing_on_a_card_is_told_by_its_memory_or_by_its_thread():
    shown, computing = two()
    survey = Survey(users=(shown, computing))

    class Telling(gpu.WellDriver):
        def memory(self, pids):
            held = super().memory(pids)
            return {**held, shown.pid: Memory(own=(0,), borrowed=0)}

        def thread(self, pid):
            return 1

    class Silent(Telling):
        def memory(self, pids):
            raise DriverError("memory", None, "not reported")

        def thread(self, pid):
            return None if pid == shown.pid else 1

    pids = (shown.pid, computing.pid)
    for driver in (Telling(*pids), Silent(*pids)):
        accelerator = Accelerator(driver, Cards(), TimeLimits())
        assert accelerator.without_memory(survey) == [shown]


def two() -> list[processes.Process]:
    return [
        processes.Process(
            pid=pid, ns_pid=pid, ppid=1, name="x", state="S", start_time=1, uid=0
        )
        for pid in (4001, 4002)
    ]


def test_fill_without_room_touches_no_driver_and_says_how_much_is_needed(sleeper):
    (process,) = sleeper.processes
    driver = gpu.WellDriver(process.pid)
    accelerator = make(driver, pid=process.pid)
    survey = Survey(users=(process,))
    described = accelerator.describe(survey)
    accelerator.empty(lambda: sleeper, survey, NO_LIMIT)
    crowded = make(driver, free=99)

    with pytest.raises(ReclaimError) as caught:
        crowded.fill(described, NO_LIMIT, sleeper)
    assert caught.value.reason.value == "gpu_memory"
    assert driver.states == {process.pid: CudaState.CHECKPOINTED}
    # Once there is room, the same again does it.
    accelerator.fill(described, NO_LIMIT, sleeper)
    assert driver.states == {process.pid: CudaState.RUNNING}


def test_fill_that_waits_for_room_is_called_off(sleeper):
    (process,) = sleeper.processes
    driver = gpu.WellDriver(process.pid)
    survey = Survey(users=(process,))
    described = make(driver, pid=process.pid).describe(survey)
    card = CardUse(uuid=gpu.CARD.uuid, name=gpu.CARD.name, free=99)
    crowded = Accelerator(driver, Cards(card), TimeLimits(room=1000))
    cancel = Cancel()
    cancel.set()
    with pytest.raises(ReclaimError) as caught:
        crowded.fill(described, NO_LIMIT, sleeper, cancel)
    assert caught.value.reason is Reason.CANCELLED
    assert driver.calls == []


class SlowDriver(gpu.WellDriver):
    def __init__(self, *pids: int) -> None:
        super().__init__(*pids)
        self.filling: list[int] = []
        self.go_on = threading.Event()

    def restore(self, pid: int, *, seconds: float, moves=()) -> None:
        self.filling.append(pid)
        assert self.go_on.wait(60)
        super().restore(pid, seconds=seconds, moves=moves)


def test_two_that_are_filled_at_once_never_count_on_the_same_memory():
    """The driver would run out of it in the middle, and lose the second."""
    popens = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    try:
        whole = processes.snapshot(os.getpid())
        pids = [popen.pid for popen in popens]
        both = [p for p in whole.processes if p.pid in pids]
        driver = SlowDriver(*pids)
        driver.states = dict.fromkeys(pids, CudaState.CHECKPOINTED)
        card = CardUse(uuid=gpu.CARD.uuid, name=gpu.CARD.name, free=150, processes=[])
        accelerator = Accelerator(driver, Cards(card), TimeLimits(dump=60))

        def fill(process) -> None:
            there = Gpus(
                driver="580.1",
                cards=[GpuCard(uuid=gpu.CARD.uuid, name=gpu.CARD.name)],
                users=[process.ns_pid],
                uses=[GpuUse(pid=process.ns_pid, uuid=gpu.CARD.uuid, bytes=100)],
            )
            tree = processes.Snapshot(whole.init, (process,))
            accelerator.fill(there, NO_LIMIT, tree)

        threads = [threading.Thread(target=fill, args=(p,)) for p in both]
        for thread in threads:
            thread.start()
        wait_for(lambda: driver.filling)
        time.sleep(0.2)  # as long as the other one would need
        assert len(driver.filling) == 1
        driver.go_on.set()
        for thread in threads:
            thread.join()
        assert set(driver.states.values()) == {CudaState.RUNNING}
    finally:
        for popen in popens:
            popen.kill()
            popen.wait()


def test_cards_that_somebody_else_looks_at_are_waited_for_never_taken_for_empty(
    sleeper, monkeypatch
):
    (process,) = sleeper.processes
    survey = Survey(users=(process,))
    use = [ProcessUse(pid=process.pid, memory=100)]
    card = CardUse(uuid=gpu.CARD.uuid, free=9, processes=use)
    monkeypatch.setattr(operations_gpu, "_LOOK_SECONDS", 0.1)
    driver = gpu.WellDriver(process.pid)

    soon = Accelerator(driver, BusyCards(card, times=3), TimeLimits())
    assert soon.describe(survey).bytes() == 100

    never = Accelerator(driver, BusyCards(card, times=10**6), TimeLimits())
    for call in (
        lambda: never.describe(survey),
        lambda: list(never.findings(survey, sleeper)),
        lambda: never.fill(soon.describe(survey), NO_LIMIT, sleeper),
    ):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.reason.value == "gpu_driver_silent"


def test_fill_of_what_was_never_emptied_needs_no_room():
    holder = gpu.Holder()
    try:
        process = holder.process(holder.pid)
        driver = gpu.WellDriver(process.pid)
        survey = Survey(users=(process,))
        described = make(driver, pid=process.pid).describe(survey)
        make(driver, free=0).fill(described, NO_LIMIT, holder.snapshot())
        assert driver.calls == []
    finally:
        holder.close()


@contextlib.contextmanager
def in_a_terminal():
    """A tree with a terminal: root, server, shell and the program that it waits for."""
    master, slave = os.openpty()
    nested = "sh -c 'sh -c \"sleep 100; true\"; true'; true"  # root, server, shell
    with subprocess.Popen(
        ["sh", "-c", nested],
        stdin=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    ) as root:
        try:
            wait_for(lambda: len(processes.snapshot(root.pid).processes) == 3)
            # Other tests' servers may be children of ours, too.
            below = processes.snapshot(root.pid)
            init = processes.snapshot_init(os.getpid())
            yield processes.Snapshot(init, (below.init, *below.processes))
        finally:
            os.killpg(root.pid, signal.SIGKILL)
    os.close(slave)
    os.close(master)


def test_the_shell_of_a_program_with_a_gpu_stands_before_it_does():
    """It would take its terminal away from a program that stops, and say so."""
    with in_a_terminal() as tree:
        *above, shell, program = tree.processes
        driver = gpu.WellDriver(program.pid)
        survey = Survey(users=(program,))
        make(driver).empty(lambda: tree, survey, NO_LIMIT)
        assert processes.is_stopped(shell)
        wait_for(lambda: processes.is_stopped(program))
        assert not any(processes.is_stopped(one) for one in above)


def test_a_shell_that_gets_no_processor_is_waited_for_before_its_program_stops():
    """It had been told to stop, and a nap went on, and ended, without it."""

    def keep_from_stopping() -> None:
        with ptrace.standing(shell.pid, but=(), seconds=5):
            kept.set()
            time.sleep(0.3)

    seen = []
    kept = threading.Event()
    with in_a_terminal() as tree:
        *_, shell, program = tree.processes
        driver = gpu.WellDriver(program.pid)
        survey = Survey(users=(program,))
        keeper = threading.Thread(target=keep_from_stopping)
        keeper.start()
        assert kept.wait(60)
        make(driver).empty(
            lambda: tree,
            survey,
            NO_LIMIT,
            standing=lambda: seen.append(processes.is_stopped(shell)),
        )
        keeper.join(60)
        assert seen == [True]


class FourCards(gpu.WellDriver):
    def cards(self) -> list[Card]:
        return [Card(f"{number:032x}", "NVIDIA Test") for number in range(4)]


def test_a_session_gets_the_cards_of_its_new_container_and_no_others(sleeper):
    (process,) = sleeper.processes
    driver, init = FourCards(process.pid), sleeper.init.pid
    first, second = (card.uuid for card in driver.cards()[1:3])
    survey = Survey(users=(process,))
    before = make(driver, visible={process.pid: {first}}.get)
    described = before.describe(survey)
    assert [card.uuid for card in described.cards] == [first]
    before.empty(lambda: sleeper, survey, NO_LIMIT)

    (found,) = make(driver, visible={init: set()}.get).compare(described, init)
    assert found.code == "gpu_mismatch"
    after = make(driver, visible={init: {second}}.get)
    assert after.compare(described, init) == []
    after.fill(described, NO_LIMIT, sleeper)
    assert driver.moves == [(first, second)]


def test_a_machine_with_a_card_is_told_of_huge_pages_that_it_does_not_use():
    setting = host.huge_pages()
    found = list(make(gpu.WellDriver()).node_findings())
    expected = [] if setting in ("", "always") else ["gpu_small_pages"]
    assert [one.code for one in found] == expected
    assert not any(one.fatal for one in found)
    assert list(make(gpu.AbsentDriver()).node_findings()) == []


def test_findings_name_a_divided_card_and_a_stopped_process(sleeper):
    (process,) = sleeper.processes
    accelerator = make(gpu.WellDriver(process.pid), divided=True)
    survey = Survey(users=(process,), stopped=(process,))
    assert [one.code for one in accelerator.findings(survey, sleeper)] == [
        "gpu_stopped",
        "gpu_mig",
    ]


@pytest.mark.parametrize("known", [True, False])
def test_findings_name_a_client_of_mps_also_one_that_the_driver_does_not_know(
    sleeper, known
):
    (process,) = sleeper.processes
    user = (process,)
    survey = Survey(users=user) if known else Survey(others=(process,))
    accelerator = make(gpu.WellDriver(process.pid), pid=process.pid, mps=True)
    assert [one.code for one in accelerator.findings(survey, sleeper)] == ["gpu_mps"]


def test_a_silent_driver_refuses_before_anything_is_touched(tmp_path):
    holder = gpu.Holder()
    try:
        with pytest.raises(Refused) as caught:
            make(gpu.SilentDriver()).survey(holder.snapshot())
        assert caught.value.reason.value == "gpu_driver_silent"
    finally:
        holder.close()
