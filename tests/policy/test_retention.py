"""What is kept no longer: by age and quota, the oldest first."""

from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.kept_bytes import KeptBytes
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.policy.retention import Kept, Retention, Use, drop

NOW = 1_700_000_000.0
DAY = 86400.0


def kept(name, *, user="ada", size=100, age=1.0, use=Use.SPARE):
    """One that was suspended ``age`` days ago."""
    return Kept(name, SessionKey(user), {name: size}, NOW - age * DAY, use)


def ids(*given_, **limits):
    return [each.id for each in drop(given_, Retention(**limits), NOW)]


def test_no_limit_drops_nothing():
    assert ids(kept("a", size=10**12, age=10_000)) == []


def test_age_drops_what_is_older_and_says_so():
    found = drop(
        [kept("old", age=31), kept("new", age=29)], Retention(seconds=30 * DAY), NOW
    )
    assert [(each.id, each.why) for each in found] == [
        ("old", "checkpoints are kept for 30 d")
    ]


def test_user_quota_takes_of_that_user_only_oldest_first():
    found = ids(
        kept("a-new", age=1),
        kept("a-old", age=5),
        kept("b-oldest", user="bob", age=9),
        user_bytes=150,
    )
    assert found == ["a-old"]


def test_total_quota_takes_of_all_least_recently_suspended_first():
    found = ids(
        kept("a", age=1),
        kept("b", user="bob", age=9),
        kept("c", user="eve", age=5),
        total_bytes=100,
    )
    assert found == ["b", "c"]


def test_what_a_later_one_needs_counts_as_long_as_any_of_them_is_there():
    """The first is deleted by its user, and what it has written stays."""
    second = Kept("2", SessionKey("ada"), {"1": 500, "2": 1}, NOW - DAY, Use.SPARE)
    assert ids(second, user_bytes=100) == ["2"]
    both = (kept("1", size=510, age=2.0), second)
    assert ids(*both, user_bytes=520) == []
    # The first frees only what it alone needs.
    assert ids(*both, user_bytes=505) == ["1"]
    assert ids(*both, user_bytes=500) == ["1", "2"]


def test_only_checkpoint_of_a_suspended_session_stays_unless_it_is_allowed():
    mine = (kept("current", age=99, use=Use.CURRENT), kept("spare", age=1))
    limits = {"total_bytes": 1, "seconds": DAY / 2, "user_bytes": 1}
    assert ids(*mine, **limits) == ["spare"]
    assert sorted(ids(*mine, takes_current=True, **limits)) == ["current", "spare"]


def test_spare_ones_go_before_older_current_ones():
    mine = (kept("current", age=99, use=Use.CURRENT), kept("spare", age=1))
    assert ids(*mine, total_bytes=100, takes_current=True) == ["spare"]


def test_what_is_being_brought_back_is_never_dropped():
    mine = (kept("busy", age=99, use=Use.BUSY), kept("busy2", age=98, use=Use.BUSY))
    limits = {"seconds": 1.0, "user_bytes": 1, "total_bytes": 1}
    assert ids(*mine, takes_current=True, **limits) == []


checkpoints = st.lists(
    st.builds(
        Kept,
        id=st.uuids().map(str),
        key=st.builds(SessionKey, st.sampled_from("abc"), st.sampled_from(["", "l"])),
        keeps=st.dictionaries(st.sampled_from("wxyz"), st.integers(0, 1000)),
        suspended=st.floats(NOW - 100 * DAY, NOW),
        use=st.sampled_from(Use),
    ),
    max_size=12,
)
limits_ = st.builds(
    Retention,
    seconds=st.sampled_from([0.0, DAY, 50 * DAY]),
    user_bytes=st.sampled_from([0, 100, 2000]),
    total_bytes=st.sampled_from([0, 1, 3000]),
    takes_current=st.booleans(),
)


@given(checkpoints, limits_)
def test_nothing_is_dropped_twice_nor_against_the_rules(given_, retention):
    found = [each.id for each in drop(given_, retention, NOW)]
    assert len(found) == len(set(found))
    for each in given_:
        if each.use is Use.BUSY:
            assert each.id not in found
        if each.use is Use.CURRENT and not retention.takes_current:
            assert each.id not in found
    again = [each for each in given_ if each.id not in found]
    assert drop(again, retention, NOW) == []


@given(checkpoints, st.integers(1, 5000))
def test_total_quota_is_kept_unless_the_rest_may_not_be_taken(given_, quota):
    found = {each.id for each in drop(given_, Retention(total_bytes=quota), NOW)}
    left = [each for each in given_ if each.id not in found]
    spare = [one for one in left if one.use is Use.SPARE and any(one.keeps.values())]
    assert KeptBytes(each.keeps for each in left).total <= quota or not spare
