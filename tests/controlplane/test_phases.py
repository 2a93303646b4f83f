"""The table of phases: what it forbids, and that nothing is released uncommitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.phases import (
    LIVE,
    TABLE,
    SessionEvent,
    advance,
)

#: Events that say that a committed checkpoint was seen, by capture or by looking.
SEEN = {
    SessionEvent.COMMITTED,
    SessionEvent.FOUND_CAPTURED,
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
