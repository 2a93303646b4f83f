"""How much "keep" is left in a sliding day."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.controlplane.sessions.keep_quota import (
    DAY,
    KeepSpan,
    possible_at,
    used,
)

HOUR = 3600.0
NOW = 1_700_000_000.0
spans = st.lists(
    st.builds(
        lambda start, length: KeepSpan(NOW + start, NOW + start + length),
        st.floats(-2 * DAY, 0),
        st.floats(0, DAY),
    ),
    max_size=6,
)


def test_what_lies_ahead_counts_and_what_is_a_day_old_does_not():
    assert used([KeepSpan(NOW, NOW + HOUR)], NOW) == HOUR
    assert used([KeepSpan(NOW - DAY - HOUR, NOW - DAY + HOUR)], NOW) == HOUR
    assert used([KeepSpan(NOW - 2 * DAY, NOW - DAY)], NOW) == 0
    assert used([KeepSpan(NOW, NOW + 5.0), KeepSpan(NOW, NOW + 5.0)], NOW) == 10.0


def test_more_is_possible_as_the_oldest_slides_out():
    had = [KeepSpan(NOW - 20 * HOUR, NOW - 16 * HOUR)]
    assert possible_at(had, HOUR, 4 * HOUR, NOW) == pytest.approx(NOW + 5 * HOUR)
    assert possible_at(had, 4 * HOUR, 4 * HOUR, NOW) == pytest.approx(NOW + 8 * HOUR)
    assert possible_at([], HOUR, HOUR, NOW) == NOW
    assert possible_at([], HOUR + 1, HOUR, NOW) is None


@settings(max_examples=50)
@given(spans, st.floats(1, DAY), st.floats(1, DAY))
def test_possible_at_is_the_first_such_moment(had, seconds, limit):
    at = possible_at(had, seconds, limit, NOW)
    if at is None:
        assert seconds > limit
        return
    assert at >= NOW
    assert used(had, at) + seconds <= limit + 0.01
    if at > NOW:
        assert used(had, at - 1.0) + seconds > limit - 0.01
