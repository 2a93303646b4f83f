import pytest
from traitlets import TraitError
from traitlets.config import Config

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.rules import Rules, Subject
from tests.policy.conftest import NOW


def first(snapshot, now, **settings):
    return IdlePolicy(**settings).reasons(snapshot, now)[0]


def test_idle_session_is_reclaimed_with_its_durations(snapshot, now):
    verdict = first(snapshot(), now)
    assert verdict.reclaim
    assert verdict.code == "idle"
    assert verdict.message == "Idle for 30 min (counts as idle after 15 min)."
    assert verdict.at == now


@pytest.mark.parametrize(
    ("usage", "reason", "words"),
    [
        ({"busy_kernel": "a.ipynb"}, Reason.KERNEL_BUSY, "a.ipynb"),
        ({"unknown_kernel": "b.ipynb"}, Reason.KERNEL_UNKNOWN, "b.ipynb"),
        ({"cpu_percent": 55.4}, Reason.CPU_BUSY, "55 %"),
        ({"gpu_peak_percent": 71.2}, Reason.GPU_BUSY, "71 %"),
        ({"data_rate": 1.2e6}, Reason.DATA_MOVES, "1.2 MB per second"),
        ({"page_peak_rate": 2300.0}, Reason.PAGE_USED, "2.3 kB per second"),
        ({"last_active": 1_700_000_000.0 - 720}, Reason.RECENTLY_ACTIVE, "12 min"),
        ({"watched": 300.0}, Reason.WINDOW_TOO_SHORT, "5 min"),
        ({"complete": False}, Reason.SAMPLES_MISSING, "counts as in use"),
        ({"last_active": None}, Reason.SAMPLES_MISSING, ""),
        ({"kernels": None}, Reason.SAMPLES_MISSING, ""),
        ({"terminals": None}, Reason.SAMPLES_MISSING, ""),
        ({"jupyter": False}, Reason.NO_JUPYTER, "not a Jupyter server"),
        ({"cpu_percent": None}, Reason.SAMPLES_MISSING, ""),
        ({"gpu_percent": None}, Reason.SAMPLES_MISSING, ""),
        ({"sample_age": 61.0}, Reason.SAMPLES_MISSING, ""),
        ({"at": 1_700_000_000.0 - 61}, Reason.SAMPLES_MISSING, ""),
    ],
)
def test_one_reason_against_idleness_is_told(snapshot, now, usage, reason, words):
    verdict = first(snapshot(usage), now)
    assert not verdict.reclaim
    assert verdict.code == reason.value
    assert words in verdict.message
    assert "(name)" not in verdict.message


def test_server_without_jupyter_is_judged_by_what_it_does_where_that_is_set(
    snapshot, now
):
    proxied = {"jupyter": False, "kernels": 0, "terminals": 0}
    assert first(snapshot(proxied), now, without_jupyter=True).reclaim
    for used, code in (
        ({"cpu_percent": 55.0}, "cpu_busy"),
        ({"gpu_peak_percent": 55.0}, "gpu_busy"),
        ({"page_peak_rate": 90.0, "page_quiet_rate": 20.0}, "page_used"),
        ({"data_rate": 1e6}, "data_moves"),
        ({"gpu_percent": None}, "samples_missing"),
    ):
        verdict = first(snapshot(proxied | used), now, without_jupyter=True)
        assert verdict.code == code


def test_cell_that_waits_for_an_answer_is_work_for_a_time_of_its_own(snapshot, now):
    usage = {"prompt_kernel": "a.ipynb", "prompt_since": now - 1200}
    verdict = first(snapshot(usage), now)
    assert (verdict.code, verdict.at) == ("prompt_open", now + 2400)
    assert verdict.message == (
        "A cell of kernel a.ipynb has been waiting for an answer for 20 min (counts as"
        " idle after 1 h)."
    )
    assert first(snapshot(usage), now, prompt_idle_after=1200).reclaim
    for_ever = first(snapshot(usage), now, prompt_idle_after=None)
    assert (for_ever.code, for_ever.at) == ("kernel_busy", None)


def test_recently_active_tells_when_it_may_be_idle(snapshot, now):
    verdict = first(snapshot({"last_active": now - 100}), now)
    assert verdict.at == now + 800
    assert "kernel train.ipynb" in verdict.message


def test_window_too_short_tells_when_it_is_long_enough(snapshot, now):
    verdict = first(snapshot({"watched": 300.0, "sample_age": 3.0}), now)
    assert verdict.at == now - 3 - 300 + 900


def test_latest_of_time_reasons_comes_first(snapshot, now):
    codes = [
        verdict.code
        for verdict in IdlePolicy().reasons(
            snapshot({"watched": 850.0, "last_active": now - 100}), now
        )
    ]
    assert codes == ["recently_active", "window_too_short"]


def test_active_in_the_future_is_recently_active(snapshot, now):
    assert first(snapshot({"last_active": now + 50}), now).code == "recently_active"


def test_all_reasons_are_told_kernel_first(snapshot, now):
    usage = {"busy_kernel": "a", "cpu_percent": 99.0, "last_active": now}
    codes = [v.code for v in IdlePolicy().reasons(snapshot(usage), now)]
    assert codes == ["kernel_busy", "cpu_busy", "recently_active"]


def test_connected_counts_only_if_the_admin_says_so(snapshot, now):
    usage = {"connections": 3}
    assert first(snapshot(usage), now).reclaim
    verdict = first(snapshot(usage), now, connected_is_active=True)
    assert verdict.code == "connected"
    assert "connections: 3" in verdict.message
    unknown = first(snapshot({"connections": None}), now, connected_is_active=True)
    assert unknown.code == "samples_missing"


def test_connection_to_another_machine_holds_a_session_for_a_time_of_its_own(
    snapshot, now
):
    usage = {"outside": ["10.1.2.3:5432"]}
    verdict = first(snapshot(usage), now)
    assert (verdict.code, verdict.at) == ("connected_outside", now + 1800)
    assert verdict.message == (
        "Its programs are connected to 10.1.2.3:5432; last used 30 min ago, counts as"
        " idle after 1 h while they are."
    )
    two = first(snapshot({"outside": ["10.1.2.3:5432", "10.1.2.4:22"]}), now)
    assert "10.1.2.3:5432 and 1 more;" in two.message
    for limit in (1800, 0):
        assert first(snapshot(usage), now, connections_after=limit).reclaim
    for nothing in ([], None):
        assert first(snapshot({"outside": nothing}), now).reclaim


@pytest.mark.parametrize(
    ("setting", "usage"),
    [
        ("busy_cpu_percent", {"cpu_percent": 400.0}),
        ("busy_gpu_percent", {"gpu_percent": 80.0, "gpu_peak_percent": 80.0}),
        ("busy_gpu_percent", {"gpu_percent": None, "gpu_peak_percent": None}),
        ("busy_data_rate", {"data_rate": 1e9}),
        ("page_data_rate", {"page_peak_rate": 1e6}),
    ],
)
def test_limit_of_none_does_not_look_at_that(snapshot, now, setting, usage):
    assert first(snapshot(usage), now, **{setting: None}).reclaim


@pytest.mark.parametrize(
    ("rate", "quiet", "used"),
    [
        (298.8, 283.4, False),  # VS Code, forgotten
        (33.0, 28.0, False),  # and without our extension
        (114.0, 28.0, True),  # and used
        (3.2, 1.0, True),  # a click in Shiny
        (1.0, 0.5, False),  # Shiny, forgotten
        (22.0, 0.0, True),  # a click in Streamlit
        (2000.0, None, False),  # nobody knows yet what it sends by itself
        (1020.0, 1000.0, False),  # a dashboard that asks for news all the time
        (2500.0, 2400.0, True),  # as much as somebody who types all the time
    ],
)
def test_page_is_used_if_it_sends_much_or_more_than_by_itself(
    snapshot, now, rate, quiet, used
):
    usage = {"page_peak_rate": rate, "page_quiet_rate": quiet}
    assert first(snapshot(usage), now).reclaim is not used
    verdict = first(snapshot(usage), now, page_data_rate=None)
    assert verdict.reclaim


def test_busy_cpu_percent_of_zero_takes_any_use_for_work(snapshot, now):
    assert first(snapshot(), now, busy_cpu_percent=0).code == "cpu_busy"
    assert first(snapshot({"cpu_percent": 0.0}), now, busy_cpu_percent=0).reclaim


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "soon"])
def test_idle_after_that_makes_no_sense_is_an_error(value):
    with pytest.raises(TraitError, match="idle_after"):
        IdlePolicy(idle_after=value)


def test_idle_after_is_taken_from_configuration(snapshot, now):
    config = Config({"IdlePolicy": {"idle_after": 3600}})
    assert IdlePolicy(config=config).idle_after == 3600
    assert IdlePolicy(config=config).reasons(snapshot(), now)[0].code == (
        "recently_active"
    )


@pytest.mark.parametrize(
    ("mode", "due", "said"),
    [
        ("never", NOW + 60, "due at 2023-11-14 22:14 UTC, runs only once the session"),
        ("never", 0.0, None),
        ("never", None, None),
        ("wake", NOW + 60, "kept running for it"),
        ("wake", NOW + 3600, "It is resumed for its scheduled job, due at"),
        ("wake", None, "a time that is not known"),
        ("wake", 0.0, None),
        ("keep", NOW + 3600, "kept running for it"),
        ("keep", None, "a time that is not known"),
        ("keep", 0.0, None),
    ],
)
def test_scheduled_job_is_told_kept_or_woken_for(snapshot, now, mode, due, said):
    policy = IdlePolicy(wake_for_jobs=mode)
    (decision,) = policy.reasons(snapshot({"job_due": due}), now)
    kept = said is not None and "it is resumed" not in said.lower() and mode != "never"
    assert decision.code == ("job_due" if kept else "idle")
    if said is None:
        assert decision.message.endswith("after 15 min).")
    else:
        assert said in decision.message


def test_rule_says_for_whom_a_job_is_woken(snapshot, now):
    terms = Rules(rules=[{"user": "ada", "wake_for_jobs": "keep"}]).policy_for(
        Subject(key=SessionKey("ada"))
    )
    (decision,) = IdlePolicy().reasons(
        snapshot({"job_due": now + 9e4}, terms=terms), now
    )
    assert decision.code == "job_due"
    assert "by the rule for user ada" in decision.message
    with pytest.raises(TraitError, match="wake_for_jobs"):
        Rules(rules=[{"user": "ada", "wake_for_jobs": True}])
