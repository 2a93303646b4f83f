"""The table of phases: what it forbids, and that nothing is released uncommitted."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    TABLE,
    Intent,
    SessionEvent,
    SessionRow,
    advance,
    ended,
)

#: Events that say that a committed checkpoint was seen, by capture or by looking.
SEEN = {
    SessionEvent.COMMITTED,
    SessionEvent.FOUND_SAVED,
    SessionEvent.BROUGHT_BACK,
}
#: Events after which no checkpoint is what a start would restore.
GONE = {
    SessionEvent.STARTED,
    SessionEvent.STOPPED,
    SessionEvent.VANISHED,
    SessionEvent.THAWED,
    SessionEvent.DISCARDED,
    SessionEvent.PUT_ASIDE,
}
ENDED = {Phase.RELEASING, Phase.SUSPENDED, Phase.RESUMING}


@given(st.lists(st.sampled_from(list(SessionEvent)), max_size=30))
def test_phases_any_path_of_events_never_releases_without_a_commit(events):
    phase, saved = Phase.RUNNING, False
    for event in events:
        after = saved or event in SEEN
        try:
            phase = advance(phase, event, saved=after)
        except Refused:
            continue
        saved = after and not (event in GONE and phase not in ENDED)
        assert saved or phase not in ENDED


@given(st.sampled_from(list(Phase)), st.sampled_from(list(SessionEvent)))
def test_phases_step_that_is_not_in_the_table_is_refused(phase, event):
    if (phase, event) in TABLE:
        assert advance(phase, event, saved=True) == TABLE[phase, event]
    else:
        with pytest.raises(Refused) as caught:
            advance(phase, event, saved=True)
        assert caught.value.reason is Reason.WRONG_PHASE
        assert phase.value in caught.value.message
        assert event.value in caught.value.message


@pytest.mark.parametrize("event", [SessionEvent.COMMITTED])
def test_phases_commit_without_checkpoint_is_refused(event):
    with pytest.raises(Refused) as caught:
        advance(Phase.SUSPENDING, event, saved=False)
    assert caught.value.reason is Reason.NOT_CAPTURED


def test_phases_live_session_reaches_release_only_through_commit():
    ways = {
        event
        for (phase, event), after in TABLE.items()
        if after in {Phase.RELEASING, Phase.SUSPENDED}
        and phase in {*LIVE, Phase.SUSPENDING, Phase.STOPPED}
    }
    assert ways == SEEN | {SessionEvent.LOST}


def test_phases_every_phase_can_be_left():
    assert {phase for phase, _ in TABLE} == set(Phase)


_USED = SessionRow(
    key=SessionKey("ada"),
    phase=Phase.RUNNING,
    since=1.0,
    incarnation="i1",
    checkpoint="c1",
    attempt="c2",
    intent=Intent.RESUME,
    intent_by="ada",
    placed=True,
    stop_asked=1.0,
    bring_back="c0",
    failures=2,
    backoff_until=9.0,
)


@pytest.mark.parametrize(("phase", "event"), sorted(TABLE))
@pytest.mark.parametrize("incarnation", ["i1", "i2"])
def test_what_one_phase_has_alone_ends_with_it(phase, event, incarnation):
    before = msgspec.structs.replace(_USED, phase=phase)
    after = msgspec.structs.replace(
        before, phase=TABLE[phase, event], incarnation=incarnation
    )
    row = msgspec.structs.replace(after, **ended(event, before, after))
    assert bool(row.attempt) == (row.phase is Phase.SUSPENDING)
    of_this_one = row.phase is Phase.RESUMING and incarnation == "i1"
    assert row.placed is of_this_one
    begun = {SessionEvent.SUSPEND, SessionEvent.RESTORE, SessionEvent.FOUND_SAVED}
    assert row.intent is Intent.NONE or event not in begun
