from jupyterhub_gpu_reclaim.common.fair_order import fair
from jupyterhub_gpu_reclaim.common.models import SessionKey

A1, A2, A3, B1 = (
    SessionKey("ada", "1"),
    SessionKey("ada", "2"),
    SessionKey("ada", "3"),
    SessionKey("bob"),
)


def test_first_come_is_first_served():
    assert fair([(B1, 2.0), (A1, 1.0)], {}) == [A1, B1]


def test_everybodys_first_session_comes_before_anybodys_second():
    waiting = [(A1, 1.0), (A2, 2.0), (A3, 3.0), (B1, 9.0)]
    assert fair(waiting, {}) == [A1, B1, A2, A3]


def test_who_has_a_gpu_already_comes_after_who_has_none():
    assert fair([(A2, 1.0), (B1, 9.0)], {"ada": 1}) == [B1, A2]
    assert fair([(A2, 1.0), (B1, 9.0)], {"ada": 1, "bob": 1}) == [A2, B1]


def test_nobody_waits():
    assert fair([], {"ada": 3}) == []
