import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    KernelSample,
    Sample,
    SessionKey,
    TerminalSample,
)
from jupyterhub_gpu_reclaim.sampling import jupyter_api
from jupyterhub_gpu_reclaim.sampling.window import UNUSED_SECONDS, Window

START = 1_700_000_000.0


@pytest.mark.parametrize("field", ["gpu_reclaim_paged", "connections"])
@pytest.mark.parametrize("number", [-1, 2**53 + 1, 10**400])
def test_number_that_a_user_makes_up_ends_no_measurement_of_others(field, number):
    """A float of the last one is an error, which would end the look at all sessions."""
    told = f'{{"{field}": {number}}}'.encode()
    with pytest.raises(BadRequest):
        codec.decode(told, jupyter_api.Status)
    known = codec.decode(f'{{"{field}": {2**53}}}'.encode(), jupyter_api.Status)
    window = Window(span=600.0, interval=10.0)
    window.add(sample(0, paged=getattr(known, field)))
    assert window.usage(START, 600.0).page_peak_rate is None


def sample(at, *, incarnation="i1", state="idle", active=0.0, typed=-100.0, **changes):
    """A whole sample at START + at; the kernel's and terminal's times likewise."""
    values = {
        "memory": 1000,
        "cpu_work": 5.0,
        "kernels": [
            KernelSample(
                id="k1",
                name="train.ipynb",
                execution_state=state,
                last_activity=START + active,
            )
        ],
        "terminals": [TerminalSample(name="1", last_input=START + typed)],
        "connections": 2,
        "started": START - 500,
    } | changes
    return Sample(
        incarnation=incarnation, key=SessionKey("ada"), at=START + at, **values
    )


def window_of(*samples, span=900.0, interval=10.0):
    window = Window(span=span, interval=interval)
    for each in samples:
        window.add(each)
    return window


def usage_of(*samples, at=None, **settings):
    now = samples[-1].at if at is None else START + at
    return window_of(*samples, **settings).usage(now)


def regular(until, **changes):
    return [sample(at, **changes) for at in range(0, until + 1, 10)]


# --- how long it was watched ---------------------------------------------------------


def test_window_without_samples_knows_nothing():
    usage = Window(span=900, interval=10).usage(START)
    assert usage.watched == 0
    assert usage.sample_age >= START
    assert usage.last_active is None
    assert not usage.complete


def test_window_with_regular_samples_watches_since_the_first():
    usage = usage_of(*regular(300))
    assert usage.watched == 300
    assert usage.sample_age == 0
    assert usage.complete


def test_window_with_short_gap_goes_on():
    assert usage_of(*regular(100), sample(130), sample(140)).watched == 140


def test_window_with_gap_of_more_than_three_intervals_restarts():
    assert usage_of(*regular(100), sample(131), sample(141)).watched == 10


def test_window_with_newest_sample_too_old_has_watched_nothing():
    usage = usage_of(*regular(100), at=131)
    assert usage.watched == 0
    assert usage.sample_age == 31


def test_window_with_one_incomplete_sample_goes_on_but_is_incomplete_then():
    samples = [*regular(100), sample(110, kernels=None)]
    assert not usage_of(*samples).complete
    assert usage_of(*samples).watched == 100
    assert usage_of(*samples, sample(120)).watched == 120
    assert usage_of(*samples, sample(120)).complete


def test_window_with_incomplete_samples_for_longer_restarts():
    blind = [sample(at, kernels=None) for at in range(110, 150, 10)]
    assert usage_of(*regular(100), *blind, sample(150), sample(160)).watched == 10


def test_window_with_sample_twice_or_late_is_the_same():
    samples = regular(100)
    assert usage_of(*samples, samples[3], samples[-1], at=100) == usage_of(*samples)


def test_window_of_new_incarnation_starts_anew():
    usage = usage_of(
        *regular(100), sample(110, incarnation="i2", cpu_work=0.1, started=START + 105)
    )
    assert usage.watched == 0
    assert usage.last_active == START + 105
    assert usage.cpu_percent is None


def test_window_ignores_a_late_sample_of_the_former_incarnation():
    samples = [sample(at, incarnation="i2") for at in (0, 10, 20)]
    assert usage_of(*samples, sample(5, state="busy", active=5), at=20) == usage_of(
        *samples
    )


# --- activity ------------------------------------------------------------------------


def test_last_active_is_the_newest_of_all_signs():
    assert usage_of(*regular(100, active=50)).last_active == START + 50
    assert usage_of(*regular(100, active=50)).last_active_what == "kernel train.ipynb"
    assert usage_of(*regular(100, typed=70)).last_active_what == "terminal 1"
    saved = usage_of(*regular(100, last_saved=START + 80))
    assert (saved.last_active, saved.last_active_what) == (START + 80, "file saved")
    started = usage_of(*regular(100, kernels=[], terminals=[]))
    assert started.last_active == START - 500
    assert started.last_active_what == "session started"


def test_last_active_survives_the_kernel_that_showed_it():
    """Nor is it newer for its end: a culler of the server's own ends idle kernels."""
    usage = usage_of(
        *regular(100, active=50), sample(110, kernels=[]), sample(120, kernels=[])
    )
    assert usage.last_active == START + 50
    assert usage.last_active_what == "kernel train.ipynb"


def test_busy_kernel_that_is_closed_is_use_and_so_is_a_new_one():
    closed = usage_of(sample(100, state="busy"), sample(110, kernels=[]))
    opened = usage_of(sample(100, kernels=[]), sample(110))
    assert closed.last_active == opened.last_active == START + 110
    assert opened.last_active_what == "kernel opened or closed"


def test_closed_terminal_is_no_use_and_an_opened_one_is():
    assert usage_of(*regular(100), sample(110, terminals=[])).last_active < START + 110
    opened = usage_of(sample(100, terminals=[]), sample(110))
    assert opened.last_active_what == "terminal opened"


def test_kernel_time_ahead_counts_as_now():
    assert usage_of(*regular(100, active=9999)).last_active == START + 100


def test_notebook_time_ahead_is_not_believed():
    usage = usage_of(*regular(100, last_saved=START + 9999))
    assert usage.last_active == START


def test_open_connections_are_no_activity():
    assert usage_of(*regular(100, connections=9)).last_active == START


def test_nothing_known_of_activity_is_incomplete():
    usage = usage_of(*regular(100, kernels=[], terminals=[], started=None))
    assert usage.last_active is None
    assert not usage.complete


def test_terminal_without_known_input_is_incomplete():
    usage = usage_of(
        *regular(100, terminals=[TerminalSample(name="1", last_input=None)])
    )
    assert usage.watched == 0
    assert not usage.complete


# --- kernels and processor -----------------------------------------------------------


def test_kernels_busy_and_unknown_are_named():
    assert usage_of(*regular(100)).busy_kernel is None
    assert usage_of(*regular(100), sample(110, state="busy")).busy_kernel == (
        "train.ipynb"
    )
    for state in ("starting", "restarting", "autorestarting", "dead", "unknown", ""):
        usage = usage_of(*regular(100), sample(110, state=state))
        assert usage.unknown_kernel == "train.ipynb"
        assert usage.busy_kernel is None
    assert usage_of(*regular(100)).unknown_kernel is None


def test_kernel_that_nobody_has_ever_used_is_idle_after_a_while():
    def unknown(at: float, state: str, connections: int = 0) -> bool:
        kernel = KernelSample(
            id="k1",
            name="k",
            execution_state=state,
            last_activity=START,
            connections=connections,
        )
        return usage_of(sample(at, kernels=[kernel])).unknown_kernel == "k"

    for state in ("starting", "dead"):
        assert unknown(UNUSED_SECONDS - 1, state)
        assert not unknown(UNUSED_SECONDS, state)
        assert unknown(UNUSED_SECONDS, state, connections=1)
    assert unknown(UNUSED_SECONDS, "restarting")


def asking(name: str, since: float | None, state: str = "busy") -> KernelSample:
    """A kernel whose cell asked then, and whom a page has asked something just now."""
    return KernelSample(
        id=name,
        name=name,
        execution_state=state,
        last_activity=START + 99,
        prompt_since=None if since is None else START + since,
    )


def test_cell_that_waits_for_an_answer_is_neither_busy_nor_used():
    usage = usage_of(*regular(100, kernels=[asking("a", 20), asking("b", 50)]))
    assert usage.busy_kernel is None
    assert (usage.prompt_kernel, usage.prompt_since) == ("b", START + 50)
    assert (usage.last_active, usage.last_active_what) == (START + 50, "kernel b")
    answered = usage_of(*regular(100, kernels=[asking("a", None), asking("b", 50)]))
    assert answered.busy_kernel == "a"
    ended = usage_of(*regular(100, kernels=[asking("a", 20, "idle")]))
    assert ended.prompt_kernel is None


def test_question_that_was_open_in_a_suspend_is_asked_by_the_return():
    usage = usage_of(*regular(100, kernels=[asking("a", 20)], started=START + 60))
    assert usage.prompt_since == START + 60


def test_keys_in_a_terminal_of_another_program_are_activity():
    usage = usage_of(*regular(100), sample(110, last_typed=START + 107))
    assert usage.last_active == START + 107
    assert usage.last_active_what == "terminal of a program"


def test_request_of_a_person_is_activity_and_one_ahead_counts_as_now():
    usage = usage_of(*regular(100), sample(110, last_asked=START + 107))
    assert usage.last_active == START + 107
    assert usage.last_active_what == "request of a person"
    ahead = usage_of(*regular(100), sample(110, last_asked=START + 9999))
    assert ahead.last_active == START + 110


def test_data_rate_is_that_of_what_moves_most():
    def usage(written: float | None, moved: float | None):
        return usage_of(
            *(
                sample(
                    at,
                    written=None if written is None else int(at * written),
                    moved=None if moved is None else int(at * moved),
                )
                for at in range(0, 101, 10)
            )
        )

    assert usage(500, 2000).data_rate == 2000
    assert usage(500, None).data_rate == 500
    assert usage(None, None).data_rate is None


def test_page_rate_is_the_most_of_ten_seconds_in_the_span():
    def peak(*paged: tuple[int, int], step: int, until: int) -> float:
        """The peak where so many bytes came at those times."""
        return usage_of(
            *(
                sample(at, paged=sum(size for when, size in paged if when <= at))
                for at in range(0, until + 1, step)
            )
        ).page_peak_rate

    assert peak((55, 4000), step=10, until=900) == 400
    assert peak((55, 4000), step=10, until=960) == 0
    # However often it is sampled.
    assert peak((55, 2000), (58, 2000), step=1, until=100) == 400
    assert peak((55, 4000), step=20, until=100) == 200
    assert usage_of(*regular(50)).page_peak_rate is None


def test_quiet_page_rate_is_what_pages_send_in_any_stretch():
    def quiet(paged, until=900):
        return usage_of(
            *(sample(at, paged=paged(at)) for at in range(0, until + 1, 10))
        ).page_quiet_rate

    assert quiet(lambda at: 28 * at) == 28
    assert quiet(lambda at: 1000 * (at // 60)) == 100  # once a minute
    assert quiet(lambda at: 1000 * (at // 300)) == 0  # and once in five
    assert quiet(lambda at: 10 * at + 500 * (at > 450)) == 10  # once used
    assert quiet(lambda at: 28 * at, until=170) is None


def test_cpu_percent_is_the_mean_over_the_span():
    samples = [sample(at, cpu_work=at * 0.2) for at in range(0, 1001, 10)]
    assert round(usage_of(*samples).cpu_percent, 6) == 20


def test_cpu_percent_of_work_before_the_span_is_forgotten():
    samples = [sample(at, cpu_work=min(at, 100)) for at in range(0, 1101, 10)]
    assert usage_of(*samples).cpu_percent == 0


def test_cpu_percent_of_a_busy_last_minute_is_not_diluted():
    samples = [sample(at, cpu_work=max(0, at - 840)) for at in range(0, 901, 10)]
    assert usage_of(*samples).cpu_percent == 100


def test_cpu_percent_of_an_earlier_burst_still_counts():
    samples = [sample(at, cpu_work=min(at, 180)) for at in range(0, 901, 10)]
    assert usage_of(*samples).cpu_percent == 20


def test_cpu_counter_backwards_is_unknown_then_starts_anew():
    samples = [*regular(100, cpu_work=50.0), sample(110, cpu_work=1.0)]
    assert usage_of(*samples).cpu_percent is None
    assert not usage_of(*samples).complete
    assert usage_of(*samples, sample(120, cpu_work=2.0)).cpu_percent == 10


def test_cpu_of_one_sample_or_none_is_unknown():
    assert usage_of(sample(0)).cpu_percent is None
    assert usage_of(*regular(50), sample(60, cpu_work=None)).cpu_percent is None


# --- laws ----------------------------------------------------------------------------

maybe = st.none() | st.floats(0, 1000)
wild = st.lists(
    st.builds(
        lambda at, state, cpu, kernels, terminals, started: sample(
            at,
            state=state,
            cpu_work=cpu,
            started=None if started is None else START + started,
            **({"kernels": None} if kernels else {}),
            **({"terminals": None} if terminals else {}),
        ),
        st.integers(0, 600),
        st.sampled_from(["idle", "busy", "starting"]),
        maybe,
        st.booleans(),
        st.booleans(),
        maybe,
    ),
    min_size=1,
    max_size=30,
)


@given(wild)
def test_usage_of_any_samples_keeps_its_laws(samples):
    window = window_of(*samples)
    usage = window.usage(START + 600)
    newest = max(samples, key=lambda each: each.at)
    assert 0 <= usage.watched <= newest.at - START
    assert usage.sample_age == START + 600 - newest.at
    assert usage.cpu_percent is None or usage.cpu_percent >= 0
    if usage.last_active is not None:
        assert usage.last_active <= newest.at
    if usage.complete:
        assert None not in (
            usage.last_active,
            usage.kernels,
            usage.terminals,
            usage.cpu_percent,
        )


# --- GPUs -----------------------------------------------------------------------------


def gpu(percent, memory=2**30):
    return GpuSample(uuid="ab", sm_percent=percent, memory=memory)


def test_gpu_percent_is_the_mean_over_the_window_of_its_busiest_card():
    usage = usage_of(*regular(600, gpus=[gpu(20.0), gpu(60.0)]))
    assert usage.gpu_percent == pytest.approx(60.0)
    assert usage.gpu_memory == 2 * 2**30
    assert usage.complete


def test_use_is_summed_up_over_the_usual_time_or_over_that_which_is_asked_for():
    window = Window(span=900, interval=10, usual=300)
    for at in range(0, 901, 10):
        window.add(sample(at, gpus=[gpu(90.0 if at == 300 else 0.0)]))
    assert window.usage(START + 900).gpu_peak_percent == 0.0
    assert window.usage(START + 900, 900).gpu_peak_percent == pytest.approx(90.0)


def test_gpu_that_works_for_a_second_a_minute_is_seen():
    usage = usage_of(
        *(
            sample(at, gpus=[gpu(10.0 if at % 60 == 0 else 0.0)])
            for at in range(0, 901, 10)
        )
    )
    assert usage.gpu_percent == pytest.approx(10 / 6, rel=0.1)
    assert usage.gpu_peak_percent == pytest.approx(10.0)


def test_gpu_that_works_for_a_second_is_seen_where_samples_come_a_little_early():
    usage = usage_of(
        *(
            sample(n * 9.9, gpus=[gpu(10.0 if n == 5 else 0.0)], paged=0)
            for n in range(10)
        )
    )
    assert usage.gpu_peak_percent == pytest.approx(10.0, rel=0.02)


def test_gpu_peak_before_the_span_is_forgotten():
    samples = [
        sample(at, gpus=[gpu(90.0 if at == 50 else 0.0)]) for at in range(0, 961, 10)
    ]
    assert usage_of(*samples[:-6]).gpu_peak_percent == pytest.approx(90.0)
    assert usage_of(*samples).gpu_peak_percent == 0.0


def test_gpu_that_has_just_begun_to_work_counts_by_its_last_minute():
    samples = regular(840, gpus=[gpu(0.0)])
    samples += [sample(at, gpus=[gpu(90.0)]) for at in range(850, 910, 10)]
    assert usage_of(*samples).gpu_percent == pytest.approx(90.0)


def test_session_that_never_touched_a_gpu_uses_none_of_it():
    usage = usage_of(*regular(60, gpus=[]))
    assert (usage.gpu_percent, usage.gpu_memory, usage.complete) == (0.0, 0, True)


@pytest.mark.parametrize("unknown", [None, [gpu(None)], [gpu(0.0), gpu(None)]])
def test_gpu_that_does_not_tell_is_never_idle(unknown):
    samples = [*regular(60, gpus=[gpu(0.0)]), sample(70, gpus=unknown)]
    usage = usage_of(*samples)
    assert usage.gpu_percent is None
    assert not usage.complete


def test_gpu_silence_longer_than_the_gap_begins_the_watch_anew():
    samples = regular(300, gpus=[gpu(0.0)])
    samples += [sample(at, gpus=None) for at in range(310, 400, 10)]
    samples += [sample(at, gpus=[gpu(0.0)]) for at in range(400, 421, 10)]
    usage = usage_of(*samples)
    assert usage.watched == 20
    assert usage.gpu_percent == 0.0
