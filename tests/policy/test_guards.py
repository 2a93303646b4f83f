import time
import zoneinfo
from datetime import UTC, datetime

import pytest
from traitlets import TraitError

from jupyterhub_gpu_reclaim.common.models import Failure, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.policy.guards import Guards

BERLIN = "Europe/Berlin"
needs_zones = pytest.mark.skipif(
    BERLIN not in zoneinfo.available_timezones(),
    reason="this machine has no time zones: install tzdata",
)


@pytest.fixture(autouse=True)
def zone(monkeypatch):
    """The machine's time zone: UTC, until a test sets another one."""

    def set_to(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    set_to("UTC")
    yield set_to
    monkeypatch.undo()
    time.tzset()


def denials(snapshot, now, **settings):
    return Guards(**settings).denials(snapshot, now)


def only(snapshot, now, **settings):
    found = denials(snapshot, now, **settings)
    assert len(found) == 1
    assert not found[0].reclaim
    return found[0]


def test_guards_of_an_old_running_session_are_silent(snapshot, now):
    assert denials(snapshot(), now) == []
    assert denials(snapshot(phase=Phase.WARNED), now) == []


@pytest.mark.parametrize("phase", [Phase.SUSPENDING, Phase.RELEASING, Phase.RESUMING])
def test_operation_in_flight_is_a_veto(snapshot, now, phase):
    verdict = only(snapshot(phase=phase), now)
    assert verdict.code == Reason.OPERATION_IN_FLIGHT.value
    assert phase.value in verdict.message


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.STOPPED])
def test_session_at_rest_is_a_veto(snapshot, now, phase):
    verdict = only(snapshot(phase=phase), now)
    assert verdict.code == Reason.WRONG_PHASE.value
    assert verdict.message == f"A session that is {phase} cannot be suspended."


def test_session_that_waits_for_its_gpu_is_in_use_whatever_its_samples_say(
    snapshot, now
):
    (veto,) = Guards().denials(snapshot(phase=Phase.NAPPING, waking=True), now)
    assert (veto.code, veto.at) == ("nap_waking", None)


def test_kept_session_is_a_veto_until_then(snapshot, now):
    verdict = only(snapshot(kept_until=now + 3600, kept_by="ada"), now)
    assert verdict.message == "Kept until 2023-11-14 23:13 UTC at the request of ada."
    assert verdict.at == now + 3600
    assert denials(snapshot(kept_until=now - 1, kept_by="ada"), now) == []


def test_kept_till_another_day_shows_the_day(snapshot, now):
    verdict = only(snapshot(kept_until=now + 7200), now)
    assert (
        verdict.message == "Kept until 2023-11-15 00:13 UTC at the request of its user."
    )


def test_opted_out_session_is_a_veto(snapshot, now):
    verdict = only(snapshot(opted_out_by="admin"), now)
    assert verdict.code == "opted_out"
    assert verdict.at is None


def test_backing_off_tells_why_and_how_long(snapshot, now):
    failure = Failure(code="capture_failed", message="It did not work.")
    verdict = only(snapshot(backoff_until=now + 90, failure=failure), now)
    assert verdict.message == (
        "The last attempt failed (It did not work); it is not tried again for 1 min 30"
        " s."
    )
    assert verdict.at == now + 90
    assert only(snapshot(backoff_until=now + 90), now).code == "backing_off"
    assert denials(snapshot(backoff_until=now), now) == []


def test_young_session_is_a_veto(snapshot, now):
    verdict = only(snapshot(started_at=now - 60), now)
    assert verdict.code == "too_young"
    assert verdict.message == "Started 1 min ago; sessions are left alone for 5 min."
    assert verdict.at == now + 240
    assert denials(snapshot(started_at=now - 60), now, min_age=0) == []
    assert denials(snapshot(started_at=now - 300), now) == []


def test_resumed_session_cools_down(snapshot, now):
    verdict = only(snapshot(resumed_at=now - 60), now)
    assert verdict.code == "cooling_down"
    assert verdict.at == now + 540
    assert denials(snapshot(resumed_at=now - 60), now, cool_down=0) == []


def test_all_vetoes_are_told(snapshot, now):
    codes = [
        verdict.code
        for verdict in denials(
            snapshot(started_at=now, resumed_at=now, opted_out_by="x"),
            now,
            quiet_hours=["22:00-23:00"],
        )
    ]
    assert codes == ["opted_out", "quiet_hours", "too_young", "cooling_down"]


@pytest.mark.parametrize(
    ("period", "at", "end"),
    [
        ("08:00-18:00", (2023, 11, 14, 8, 0), (2023, 11, 14, 18, 0)),
        ("08:00-18:00", (2023, 11, 14, 17, 59), (2023, 11, 14, 18, 0)),
        ("08:00-18:00", (2023, 11, 14, 18, 0), None),
        ("08:00-18:00", (2023, 11, 14, 7, 59), None),
        ("22:00-06:00", (2023, 11, 14, 23, 0), (2023, 11, 15, 6, 0)),
        ("22:00-06:00", (2023, 11, 14, 5, 59), (2023, 11, 14, 6, 0)),
        ("22:00-06:00", (2023, 11, 14, 12, 0), None),
        ("00:00-00:00", (2023, 11, 14, 12, 0), (2023, 11, 15, 0, 0)),
    ],
)
def test_quiet_hours_reach_from_to(snapshot, now, period, at, end):
    moment = datetime(*at, tzinfo=UTC).timestamp()
    found = denials(snapshot(), moment, quiet_hours=[period])
    ends = [verdict.at for verdict in found if verdict.code == "quiet_hours"]
    assert ends == ([] if end is None else [datetime(*end, tzinfo=UTC).timestamp()])


@needs_zones
def test_quiet_hours_mean_the_zone_of_the_machine(snapshot, zone):
    noon_in_berlin = datetime(2023, 11, 14, 11, 0, tzinfo=UTC).timestamp()
    period = ["11:59-12:01"]
    old = snapshot(started_at=0.0)
    assert denials(old, noon_in_berlin, quiet_hours=period) == []
    zone(BERLIN)
    (berlin,) = denials(old, noon_in_berlin, quiet_hours=period)
    assert "between 11:59 and 12:01 CET" in berlin.message


@needs_zones
def test_quiet_hours_over_a_change_of_the_clock_end_on_the_clock(snapshot, zone):
    zone(BERLIN)
    before = datetime(2023, 10, 28, 22, 30, tzinfo=UTC).timestamp()
    found = denials(snapshot(), before, quiet_hours=["23:00-06:00"])
    ends = [verdict.at for verdict in found if verdict.code == "quiet_hours"]
    assert ends == [datetime(2023, 10, 29, 5, 0, tzinfo=UTC).timestamp()]


@pytest.mark.parametrize("text", ["8-18", "08:00", "24:00-06:00", "", "08:00-18:60"])
def test_quiet_hours_that_make_no_sense_are_an_error(text):
    with pytest.raises(TraitError, match="write it as '08:00-18:30'"):
        Guards(quiet_hours=[text])
