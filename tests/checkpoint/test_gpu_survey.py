"""Users, stale children and others; and what a stale child is made to give up."""

import os
import signal
import time

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.cuda import give_up
from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by, survey
from jupyterhub_gpu_reclaim.linux import procfs, ptrace
from tests.support import gpu
from tests.support.agent import wait_for

if os.geteuid() != 0:
    pytest.skip("needs root: ptrace, and a file in /dev", allow_module_level=True)

PR_GET_DUMPABLE = 3


@pytest.fixture
def holder():
    made = []

    def make(*words: str) -> gpu.Holder:
        made.append(gpu.Holder(*words))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_survey_tells_a_user_from_its_stale_child(holder):
    one = holder()
    found = survey(gpu.WellDriver(one.pid), one.snapshot())
    assert [user.pid for user in found.users] == [one.pid]
    assert [child.pid for child in found.stale] == [one.child]
    assert not found.others
    assert found.savable == {one.pid, one.child}


def test_survey_child_that_opened_a_device_itself_is_another(holder):
    one = holder("own")
    found = survey(gpu.WellDriver(one.pid), one.snapshot())
    assert [process.pid for process in found.others] == [one.child]
    assert not found.stale


def test_survey_another_program_that_inherited_a_device_is_stale(holder):
    one = holder("exec")
    found = survey(gpu.WellDriver(one.pid), one.snapshot())
    assert [child.pid for child in found.stale] == [one.child]
    assert not found.others

    give_up(one.process(one.child))
    assert not held_by(one.child)
    assert one.child_says("os.readlink(f'/proc/self/fd/{device}')") == "/dev/null"


def test_survey_without_a_user_calls_nobody_stale(holder):
    one = holder()
    found = survey(gpu.WellDriver(), one.snapshot())
    assert {process.pid for process in found.others} == {one.pid, one.child}


def test_survey_without_a_driver_saves_nobody(holder):
    one = holder()
    found = survey(gpu.AbsentDriver(), one.snapshot())
    assert {process.pid for process in found.others} == {one.pid, one.child}


def test_survey_stopped_process_is_not_asked_about(holder):
    one = holder()
    os.kill(one.pid, signal.SIGSTOP)
    wait_for(lambda: one.process(one.pid).stopped)
    found = survey(gpu.WellDriver(one.pid), one.snapshot())
    assert [process.pid for process in found.stopped] == [one.pid]
    assert not found.users


def test_give_up_leaves_nothing_of_the_device_and_the_child_goes_on(holder):
    one = holder()
    give_up(one.process(one.child))

    assert not held_by(one.child)
    assert held_by(one.pid)
    assert one.child_says("os.readlink(f'/proc/self/fd/{device}')") == "/dev/null"
    assert one.child_says("6 * 7") == "42"
    assert one.child_says("threading.active_count()") == "2"


def test_give_up_keeps_the_addresses_taken(holder):
    one = holder()
    (mapping,) = held_by(one.child).mappings
    give_up(one.process(one.child))
    (line,) = (
        line
        for line in procfs.text(one.child, "maps").splitlines()
        if line.startswith(f"{mapping.start:x}-")
    )
    assert line.split()[1] == "---p"


def test_give_up_twice_and_of_one_that_has_ended_is_harmless(holder):
    one = holder()
    child = one.process(one.child)
    give_up(child)
    give_up(child)
    os.kill(one.child, signal.SIGKILL)
    wait_for(lambda: not (procfs.PROC / str(one.child)).exists() or _dead(one.child))
    give_up(child)
    assert not held_by(one.child)


def _dead(pid: int) -> bool:
    return procfs.text(pid, "stat").rpartition(")")[2].split()[:1] == ["Z"]


def test_a_traced_process_does_as_told_and_sleeps_on(holder):
    one = holder()
    for _ in range(50):
        with ptrace.stopped(one.child) as traced:
            assert traced.call("prctl", PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
            with pytest.raises(ptrace.TraceFailed, match="Bad file descriptor"):
                traced.call("close", 999)
    assert one.child_says("'well'") == "well"
    assert procfs.status(one.child)["TracerPid"] == "0"


def test_a_stopped_process_stays_stopped_after_it_was_traced(holder):
    one = holder()
    os.kill(one.child, signal.SIGSTOP)
    wait_for(lambda: one.process(one.child).stopped)
    with ptrace.stopped(one.child) as traced:
        assert traced.call("prctl", PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
    time.sleep(0.05)
    assert one.process(one.child).stopped
    os.kill(one.child, signal.SIGCONT)
    assert one.child_says("1 + 1") == "2"


def test_tracing_what_has_ended_says_so():
    with pytest.raises(ptrace.TraceFailed), ptrace.stopped(2**22 - 1):
        pass
