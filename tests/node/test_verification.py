"""The agent reads the store part by part, and tells what is damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.workflows.verification import PERIOD, StoreChecks
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.agent import wait_for
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

PARTS = 4
DAYS = PARTS * PERIOD / 86400


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def repository(tmp_path, clock):
    made = Repository(
        FolderBackend(tmp_path / "store"), clock=clock, keys=KEYS, pack_bytes=1 << 18
    )
    writer = made.begin(id="c1", key=SessionKey("ann"), incarnation="i", generation=1)
    writer.add("memory", os.urandom(3 << 20))
    writer.commit(steps=[], frozen_seconds=0.0)
    return made


def one_round(checks, clock):
    """What the parts of so many hours have read."""
    done = []
    for _ in range(PARTS):
        done.append(checks.check_part())
        clock.advance(PERIOD)
    return done


def test_store_is_read_once_in_the_days_that_are_set(repository, clock):
    checks = StoreChecks(repository, clock, days=DAYS)
    done = one_round(checks, clock)
    assert {one.part.number for one in done} == {1, 2, 3, 4}
    assert sum(one.bytes for one in done) == pytest.approx(3 << 20, rel=0.01)
    checks.close()


def test_damage_stays_in_the_metrics_until_it_is_gone(repository, clock, tmp_path):
    pack = next((tmp_path / "store" / "packs" / "c1").glob("0*"))
    whole = pack.read_bytes()
    pack.write_bytes(whole[:-100] + bytes(100))
    file = tmp_path / "verify.prom"
    checks = StoreChecks(repository, clock, days=DAYS, metrics=str(file))
    told = []
    for _ in range(2):
        told += [len(one.damage) for one in one_round(checks, clock)]
        assert "verify_damaged_checkpoints 1.0" in file.read_text()
    assert sorted(told) == [0, 0, 0, 0, 0, 0, 1, 1]
    pack.write_bytes(whole)
    one_round(checks, clock)
    assert "verify_damaged_checkpoints 0.0" in file.read_text()
    checks.close()


def test_checks_that_are_closed_end_between_two_blocks(repository, clock):
    checks = StoreChecks(repository, clock, days=PERIOD / 86400)
    checks.close()
    with pytest.raises(StoreError) as ended:
        checks.check_part()
    assert ended.value.reason is Reason.CANCELLED


def test_agent_that_verifies_by_itself_tells_what_is_damaged(agent, counter):
    """The program, which reads all of a small store as it starts."""
    agent.capture(counter, "cp")
    file = agent.folder / "verify.prom"
    verify = (
        f"--AgentApp.verify_days={PERIOD / 86400}",
        f"--AgentApp.verify_metrics_file={file}",
    )
    for damaged in (0, 1):
        file.unlink(missing_ok=True)
        agent.terminate()
        agent.start(*verify)
        told = wait_for(lambda: file.exists() and file.read_text())
        assert f"verify_damaged_checkpoints {damaged}.0" in told
        assert "verify_bytes 0.0" not in told
        assert ("cp is damaged" in agent.log.read_text()) == damaged
        pack = max((agent.folder / "store" / "packs" / "cp").iterdir(), key=_size)
        pack.write_bytes(pack.read_bytes()[:-100] + bytes(100))


def _size(path: Path) -> int:
    return path.stat().st_size
