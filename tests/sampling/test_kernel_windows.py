"""Kernels of one session, each judged by what it does itself."""

from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    KernelSample,
    Sample,
    SessionKey,
    TerminalSample,
)
from jupyterhub_gpu_reclaim.sampling.kernel_windows import KernelWindows
from jupyterhub_gpu_reclaim.sampling.window import Window

START = 1_700_000_000.0
CARD = GpuSample(uuid="ab", memory=5, sm_percent=0.0)


def kernel(name, *, active=0.0, state="idle", cpu=1.0, gpus=(CARD,), program=7):
    return KernelSample(
        id=name,
        name=f"{name}.ipynb",
        execution_state=state,
        last_activity=START + active,
        program=program,
        cpu_work=cpu,
        gpus=list(gpus),
    )


def sample(at, *kernels):
    """Of a session at work: a person types, and something else writes a file."""
    return Sample(
        incarnation="i1",
        key=SessionKey("ada"),
        at=START + at,
        cpu_server=1.0,
        cpu_work=100.0 * at,
        written=10**6 * round(at),
        kernels=list(kernels),
        terminals=[TerminalSample(name="1", last_input=START + at)],
        gpus=[CARD],
        started=START - 500,
    )


def windows_of(*samples):
    windows = KernelWindows(lambda: Window(span=900.0, interval=10.0))
    for each in samples:
        windows.add(each)
    return windows


def test_idle_kernel_of_a_session_at_work_is_known_to_be_idle():
    windows = windows_of(
        *(
            sample(at, kernel("a", state="busy", active=at, cpu=at), kernel("b"))
            for at in range(0, 101, 10)
        )
    )
    usage = windows.usage("b", START + 100, 60.0)
    assert usage.complete
    assert (usage.last_active, usage.busy_kernel, usage.cpu_percent) == (START, None, 0)
    assert (usage.data_rate, usage.gpu_memory, usage.watched) == (None, 5, 100.0)
    busy = windows.usage("a", START + 100, 60.0)
    assert (busy.busy_kernel, busy.cpu_percent) == ("a.ipynb", 100.0)


def test_kernel_whose_programs_are_not_known_is_not_judged():
    unknown = kernel("b", program=None)
    windows = windows_of(sample(0, unknown), sample(10, unknown))
    assert windows.usage("b", START + 10, 60.0) is None
    assert windows.on_gpu == []


def test_kernel_that_has_nothing_on_a_gpu_is_left_out_and_when_is_known():
    naps = kernel("b", gpus=())
    windows = windows_of(sample(0, naps), sample(10, naps), sample(20, kernel("b")))
    assert [each.id for each in windows.on_gpu] == ["b"]
    assert windows.without_gpu_at("b") == START + 10
    windows.add(sample(30))
    windows.add(sample(40, kernel("b")))
    assert windows.without_gpu_at("b") is None


def test_kernel_that_was_restarted_is_watched_anew():
    windows = windows_of(*(sample(at, kernel("b")) for at in range(0, 101, 10)))
    windows.add(sample(110, kernel("b", program=8)))
    assert windows.usage("b", START + 110, 60.0).watched == 0.0


def test_what_is_not_known_of_a_kernel_is_never_idle():
    silent = KernelSample(
        id="b",
        name="b",
        execution_state="idle",
        last_activity=START,
        program=7,
        gpus=[CARD],
    )
    windows = windows_of(*(sample(at, silent) for at in range(0, 101, 10)))
    assert not windows.usage("b", START + 100, 60.0).complete
