"""How a restore ended is told once; the same call tries anew after it."""

import subprocess
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey
from jupyterhub_gpu_reclaim.linux import processes
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.node.session import Session
from jupyterhub_gpu_reclaim.node.workflows.outcomes import Outcomes
from tests.support.checkpoints import checkpoint

KEY = SessionKey("ada")


@pytest.fixture
def holding():
    """An init that holds a place, with nothing under it."""
    init = subprocess.Popen(["sleep", "600"])
    start = processes.start_time(init.pid)
    yield Session("inc-1", KEY, init.pid, start, holding=True)
    init.kill()
    init.wait()


@pytest.fixture
def outcomes(tmp_path):
    info = checkpoint("cp", KEY, "inc-0")
    store = SimpleNamespace(info=lambda checkpoint: info)
    records = Records(tmp_path / "records")
    return Outcomes(
        placements=None, tools=SimpleNamespace(records=records, store=store)
    )


def _ended(outcomes, session, code) -> None:
    outcomes.tools.records.save(
        Record(
            operation="restore",
            incarnation=session.incarnation,
            key=KEY,
            stage=Stage.FAILED,
            checkpoint="cp",
            init_pid=session.init_pid,
            init_start=session.init_start,
            begun=1.0,
            failure=Failure(code=code, message="No."),
        )
    )


def test_restored_failure_by_the_agents_end_is_told_to_who_comes_back(
    outcomes, holding
):
    _ended(outcomes, holding, "agent_restarted")
    event = outcomes.restored(holding, "cp")
    assert event.failure.code == "agent_restarted"


@pytest.mark.parametrize("code", ["gpu_memory", "file_missing", "checkpoint_damaged"])
def test_restored_failure_that_was_told_may_be_tried_anew(outcomes, holding, code):
    _ended(outcomes, holding, code)
    assert outcomes.restored(holding, "cp") is None
