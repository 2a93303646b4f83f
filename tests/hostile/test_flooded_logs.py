"""What strangers and users ask again and again does not fill the journal."""

import itertools

import pytest

from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.common.throttle import Throttle
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from tests.service.conftest import service

__all__ = ["service"]


async def test_changes_of_one_session_are_few_and_those_of_others_go_on(service):
    service.control.put("ada")
    service.control.put("ada", "train")

    async def keep(server: str, seconds: float) -> int:
        path = f"api/sessions/ada/{server}/keep"
        body = {"seconds": seconds}
        return (await service.call(path, method="POST", body=body)).code

    codes = [await keep("-", 60.0 + n) for n in range(100)]
    assert codes[:20] == [200] * 20
    assert codes[-1] == 429
    assert len(service.control.calls) < 40
    assert await keep("train", 60.0) == 200
    assert (await service.call("api/sessions/ada/-")).code == 200


@pytest.fixture
def journal(tmp_path):
    made = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield made
    made.close()


def test_long_history_of_one_session_is_cut_and_no_other(journal):
    eve, ada = SessionKey("eve"), SessionKey("ada")
    lines = [AuditLine(at=1.0, key=ada, who="ada", what="keep")]
    lines += [AuditLine(at=2.0 + n, key=eve, who="eve", what="keep") for n in range(50)]
    journal.write(*itertools.chain(*map(schema.insert_audit, lines)))
    journal.prune_long(20)
    journal.prune_long(20)
    assert [line.at for line in journal.audit(eve)] == [51.0 - n for n in range(20)]
    assert len(journal.audit(ada)) == 1


def test_throttle_forgets_who_has_been_quiet():
    throttle = Throttle(2, per_minute=60)
    assert [throttle.lets("eve", 0.0) for _ in range(3)] == [True, True, False]
    assert throttle.lets("eve", 1.5)
    assert throttle.held_back("eve") == 1
    for n in range(5000):
        assert [throttle.lets(n, 10.0 + n) for _ in range(3)] == [True, True, False]
    assert len(throttle._left) < 1100
    assert len(throttle._held) < 1100


def test_very_long_history_is_cut_in_portions(journal, monkeypatch):
    monkeypatch.setattr("jupyterhub_gpu_reclaim.controlplane.journal.MOST_PRUNED", 7)
    eve = SessionKey("eve")
    lines = [AuditLine(at=float(n), key=eve, who="eve", what="keep") for n in range(50)]
    journal.write(*itertools.chain(*map(schema.insert_audit, lines)))
    left = []
    for _ in range(5):
        journal.prune_long(30)
        left.append(len(journal.audit(eve)))
    assert left == [43, 36, 30, 30, 30]
