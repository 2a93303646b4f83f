"""What a card says, for each phase of a session."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    GpuSample,
    KeptState,
    Nap,
    Phase,
    SessionFacts,
    SessionKey,
    SessionView,
    Step,
    Suspension,
    Usage,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.web.cards import ago, card
from tests.support.checkpoints import checkpoint

NOW = 1_700_000_000.0
ADA = SessionKey("ada", "train")
SAVED = checkpoint(
    "c1",
    ADA,
    created=NOW - 120,
    logical_bytes=1_500_000_000,
    stored_bytes=400_000_000,
    steps=[
        Step(step="dump", title="Memory", state="done", seconds=3.0),
        Step(step="commit", title="Commit", state="done", seconds=0.4),
    ],
)


def made(phase: Phase, *, manages: bool = False, **changes: object):
    view = SessionView(key=ADA, phase=phase, since=NOW - 720, **changes)
    return card(view, now=NOW, user_prefix="/", manages=manages)


def actions(one) -> list[str]:
    return [button.action for button in one.main + one.more]


def test_running_card_says_why_not_and_when():
    verdict = Decision(
        reclaim=False, code="kernel_busy", message="Kernel a is busy.", at=NOW + 480
    )
    one = made(Phase.RUNNING, verdict=verdict)
    assert one.reason == "Kernel a is busy."
    assert one.due.words == "in 8 min"
    assert one.since.words == "12 min"
    assert actions(one) == ["suspend", "keep", "keep", "save"]


def test_card_of_a_nap_says_what_it_moved_and_offers_managers_to_end_it():
    gpu = GpuSample(uuid="a", name="A100", memory=5_000_000_000)
    nap = SessionFacts(nap=Nap(begun=NOW - 60, gpus=[gpu]))
    one = made(Phase.NAPPING, facts=nap)
    assert (one.state, one.gpu) == ("Napping", "5.0 GB of GPU memory moved out")
    assert actions(one) == ["suspend", "keep", "keep", "save"]
    assert [
        button.action for button in made(Phase.NAPPING, facts=nap, manages=True).main
    ] == ["suspend", "wake"]
    failure = Failure(code="gpu_memory", message="No room.")
    late = msgspec.structs.replace(nap, nap_failure=failure, wake_failed=True)
    assert made(Phase.NAPPING, facts=late).nap == "GPU memory: not back yet. No room."
    assert made(Phase.RUNNING, facts=SessionFacts(nap_failure=failure)).nap == (
        "GPU memory: not moved out. No room."
    )
    partly = msgspec.structs.replace(nap, nap_failure=failure)
    assert made(Phase.NAPPING, facts=partly).nap == (
        "GPU memory: not all of it moved out. No room."
    )
    awake = made(Phase.RUNNING, gpus=[gpu], manages=True)
    assert [button.action for button in awake.main] == ["suspend", "nap"]


def test_order_that_has_not_begun_is_told_with_how_to_call_it_off():
    ordered = SessionFacts(intent="suspend")
    told = "It is suspended as soon as possible. Keep running calls that off."
    assert made(Phase.RUNNING, facts=ordered).order == told
    assert made(Phase.SUSPENDING, facts=ordered).order == ""
    assert made(Phase.RUNNING).order == ""


def test_user_reads_no_commands_for_the_administrator():
    away = codec.failure_of(Refused(Reason.AGENT_UNREACHABLE))
    away = msgspec.structs.replace(away, at=NOW)
    mine = made(Phase.RUNNING, failure=away)
    assert mine.failure.startswith("The last attempt failed at ")
    assert mine.failure.endswith("You have done nothing wrong.")
    assert (mine.failure_hint, mine.failure_code) == ("", "agent_unreachable")
    root = made(Phase.RUNNING, failure=away, manages=True)
    assert "systemctl restart" in root.failure_hint
    assert root.failure.endswith("The machine's agent does not answer.")


def test_suspended_card_says_why_and_how_large():
    known = Suspension(why="Idle for 15 min.", bytes=41 * 10**9, until=NOW)
    one = made(Phase.SUSPENDED, checkpoint="c1", facts=SessionFacts(suspension=known))
    assert one.suspended == "Idle for 15 min. 41 GB."
    assert one.until.iso == "2023-11-14T22:13:20+00:00"
    assert made(Phase.SUSPENDED, checkpoint="c1").suspended == ""


def test_card_offers_no_keep_that_would_be_refused():
    view = SessionView(key=ADA, phase=Phase.RUNNING, since=NOW)
    one = card(view, now=NOW, user_prefix="/", longest_keep=2 * 3600.0)
    keeps = [button.sends for button in one.more if button.action == "keep"]
    assert keeps == [("seconds", "3600")]


def test_card_says_why_a_session_does_not_nap_where_naps_are_on():
    busy = Decision(reclaim=False, code="gpu_busy", message="Its GPU is 80 % busy.")
    one = made(Phase.RUNNING, facts=SessionFacts(nap_verdict=busy))
    assert one.nap == "Nap: Its GPU is 80 % busy."
    off = Decision(reclaim=False, code="nap_off", message="Off.")
    assert made(Phase.RUNNING, facts=SessionFacts(nap_verdict=off)).nap == ""


def test_kept_card_offers_to_keep_no_longer():
    one = made(Phase.RUNNING, kept_until=NOW + 60)
    keeps = [button.sends[1] for button in one.more if button.action == "keep"]
    assert keeps == ["3600", "14400", "0"]
    assert one.kept.words == "1 min"


def test_suspended_card_offers_resume_and_start_fresh():
    one = made(Phase.SUSPENDED, checkpoint="c1", last_suspend=SAVED)
    assert [button.label for button in one.main] == ["Resume"]
    assert one.deletes == "c1"


def test_suspended_card_after_a_failure_offers_to_try_again():
    failure = Failure(code="port_in_use", message="Port 5 is taken.", hint="End it.")
    one = made(Phase.SUSPENDED, checkpoint="c1", failure=failure)
    assert [button.label for button in one.main] == ["Try again"]
    assert (one.failure, one.failure_hint) == ("Port 5 is taken.", "End it.")


def test_what_may_have_passed_since_the_last_attempt_is_told_as_what_it_was():
    absent = Failure(
        code="port_in_use", message="It is gone.", retryable=True, at=NOW - 60
    )
    one = made(Phase.SUSPENDED, checkpoint="c1", failure=absent)
    assert one.failure == (
        "The last attempt failed at 2023-11-14 22:12 UTC: It is gone."
    )
    lasting = msgspec.structs.replace(absent, retryable=False)
    assert made(Phase.RUNNING, failure=lasting).failure == "It is gone."


@pytest.mark.parametrize(
    "phase", [Phase.SUSPENDING, Phase.RELEASING, Phase.RESUMING, Phase.STOPPED]
)
def test_card_of_a_session_on_its_way_has_no_buttons(phase):
    one = made(phase, checkpoint="c1")
    assert actions(one) == []
    assert one.deletes == ""


def test_card_under_way_shows_its_steps():
    step = Step(
        step="dump", title="Memory", state="going", bytes=5_000_000, total_bytes=10**7
    )
    one = made(Phase.SUSPENDING, steps=[step])
    assert one.steps == [step]


def test_running_card_hides_the_steps_of_the_past():
    assert made(Phase.RUNNING, steps=SAVED.steps).steps == []


def test_card_of_a_strange_name_has_safe_addresses():
    key = SessionKey("a/b c", "x?y#z")
    view = SessionView(key=key, phase=Phase.RUNNING, since=NOW)
    one = card(view, now=NOW, user_prefix="/hubs/")
    assert one.url == "sessions/a%2Fb%20c/x%3Fy%23z"
    assert one.open_url == "/hubs/user/a%2Fb%20c/x%3Fy%23z/"


def test_moments_near_now_are_said_as_now():
    assert ago(NOW - 1, NOW).words == "just now"
    assert made(Phase.RUNNING, suspends_at=NOW - 1).due.words == "now"


@pytest.mark.parametrize(
    ("usage", "changes", "asks"),
    [
        ({"busy_kernel": "a"}, {}, "Kernel a is busy."),
        ({"gpu_percent": 90.0}, {}, "Its GPU is busy."),
        ({}, {"gpus": [GpuSample(uuid="g", sm_percent=90.0)]}, "Its GPU is busy."),
        (
            {},
            {
                "verdict": Decision(
                    reclaim=False, code="data_moves", message="It is writing."
                )
            },
            "It is writing.",
        ),
        ({"gpu_percent": 1.0}, {}, ""),
    ],
)
def test_session_at_work_is_not_called_unused_and_is_suspended_only_when_confirmed(
    usage, changes, asks
):
    seen = Usage(at=NOW, watched=900, sample_age=1, last_active=NOW - 660, **usage)
    one = made(Phase.RUNNING, usage=seen, **changes)
    (suspend,) = one.main
    assert suspend.asks.startswith(asks)
    assert bool(suspend.asks) == bool(asks)
    assert (one.idle is None) == bool(asks)


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.RUNNING])
def test_session_that_holds_no_gpu_shows_no_use_of_one(phase):
    usage = Usage(at=NOW, watched=1, sample_age=0, last_active=NOW, gpu_percent=50.0)
    view = SessionView(key=ADA, phase=phase, since=NOW, usage=usage)
    assert card(view, now=NOW, user_prefix="/").gpu_use == ""


def test_checkpoint_that_was_put_aside_is_listed():
    aside = KeptState(
        id="c1",
        generation=1,
        created=NOW - 60,
        logical_bytes=1,
        stored_bytes=1,
        keeping="aside",
    )
    one = made(Phase.STOPPED, kept=[aside])
    assert [state.id for state in one.states] == ["c1"]


def test_save_points_say_what_they_are_and_their_names():
    kept = [
        KeptState(
            id="c2",
            generation=2,
            created=NOW - 60,
            logical_bytes=1_200_000_000,
            stored_bytes=90_000_000,
            keeping="superseded",
            save_point=True,
        ),
        KeptState(
            id="c1",
            generation=1,
            created=NOW - 3600,
            keeping="aside",
            name="<b>mine</b>",
            save_point=True,
        ),
        KeptState(id="c0", generation=0, created=NOW - 7200, keeping="superseded"),
    ]
    states = made(Phase.RUNNING, kept=kept).states
    assert states[0].title.startswith("Save point of ")
    assert states[0].about == "1 min ago, 1.2 GB (90 MB new), in use"
    assert [one.what for one in states] == ["save point", "save point", "checkpoint"]
    assert states[1].title.startswith("Save point “<b>mine</b>” of ")
    assert "resumed from it" in states[2].about
