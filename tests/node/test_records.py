"""Records survive what a folder may go through."""

import contextlib
import errno

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey, Step
from jupyterhub_gpu_reclaim.node.operations.records import (
    Record,
    Records,
    Stage,
)
from jupyterhub_gpu_reclaim.node.requirements import GpuCard, Gpus, GpuUse

#: As an agent writes it; never edit.
FROZEN = (
    b'{"version":1,"operation":"capture","incarnation":"inc-1",'
    b'"key":{"user":"ann","server":"gpu"},"stage":"captured","checkpoint":"cp",'
    b'"generation":3,"init_pid":7,"init_start":4242,"begun":1700000000.0,'
    b'"stopped_before":[305],"steps":[{"step":"dump","title":"Saving the memory",'
    b'"state":"done","seconds":1.5,"bytes":10,"total_bytes":10}],"failure":null,'
    b'"gpus":{"driver":"580.1","cards":[{"uuid":"ab","name":"H200"}],"users":[302],'
    b'"uses":[{"pid":302,"uuid":"ab","bytes":5}]},'
    b'"memory_limit":{"file":"/sys/fs/cgroup/x/memory.max","bytes":9,"above":null},'
    b'"hint":{"pod":"0a1b","key":{"user":"ann","server":"gpu"},"image":"",'
    b'"node_labels":{},"session":"s","account":"7"},'
    b'"parent":"","nap":null,"as_of":0.0,"newer":[]}'
)


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records")


def record(stage=Stage.CAPTURED, **changes) -> Record:
    values = {
        "operation": "capture",
        "incarnation": "inc-1",
        "key": SessionKey("ann", "gpu"),
        "stage": stage,
        "checkpoint": "cp",
        "generation": 3,
        "init_pid": 7,
        "init_start": 4242,
        "begun": 1_700_000_000.0,
        "stopped_before": [305],
        "steps": [
            Step(
                step="dump",
                title="Saving the memory",
                state="done",
                seconds=1.5,
                bytes=10,
                total_bytes=10,
            )
        ],
    }
    return Record(**values | changes)


def gpus(pid: int, card: str) -> Gpus:
    cards = [GpuCard(uuid=card, name="H200")]
    uses = [GpuUse(pid=pid, uuid=card, bytes=pid)]
    return Gpus(driver="580", cards=cards, users=[pid], uses=uses)


def test_record_is_understood_and_written_unchanged(records, tmp_path):
    (tmp_path / "records" / "inc-1.json").write_bytes(FROZEN)
    found = records.find("inc-1")
    assert found.gpus.needed([302]) == {"ab": 5}
    assert found.memory_limit.bytes == 9
    assert msgspec.json.encode(found) == FROZEN


def test_record_of_another_version_is_left_as_it_is(records, tmp_path, caplog):
    path = tmp_path / "records" / "inc-1.json"
    other = FROZEN.replace(b'"version":1', b'"version":2')
    path.write_bytes(other)
    assert (records.find("inc-1"), records.list()) == (None, [])
    said = "The record has version 2; this release reads version 1 alone"
    assert caplog.text.count(said) == 1  # a service asks for all of them every 10 s
    assert path.read_bytes() == other


def test_gpus_of_a_nap_and_of_a_capture_are_joined():
    both = gpus(305, "a").joined(gpus(302, "b")).joined(None)
    assert (both.users, both.bytes()) == ([302, 305], 607)
    assert [card.uuid for card in both.cards] == ["a", "b"]
    assert both.only({305}).needed({302, 305}) == {"a": 305}


def test_save_replaces_and_closes_to_others(records, tmp_path):
    records.save(record())
    failure = Failure(code="agent_restarted", message="…")
    records.save(record(Stage.FAILED, failure=failure))
    assert records.find("inc-1").failure == failure
    path = tmp_path / "records" / "inc-1.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["inc-1.json"]


def test_list_leaves_out_what_cannot_be_read(records, tmp_path):
    records.save(record())
    (tmp_path / "records" / "torn.json").write_bytes(FROZEN[:50])
    (tmp_path / "records" / "half.json.new").write_bytes(b"")
    assert [one.incarnation for one in records.list()] == ["inc-1"]
    assert records.find("torn") is None


def test_remembered_record_counts_until_one_is_written(records, tmp_path):
    records.save(record(Stage.CAPTURING))
    records.remember(record(Stage.ROLLING_BACK))
    assert records.find("inc-1").stage is Stage.ROLLING_BACK
    assert [one.stage for one in records.list()] == [Stage.ROLLING_BACK]
    after_a_restart = Records(tmp_path / "records")
    assert after_a_restart.find("inc-1").stage is Stage.CAPTURING
    records.save(record(Stage.FAILED))
    assert [one.stage for one in records.list()] == [Stage.FAILED]
    records.remember(record(Stage.ROLLING_BACK))
    records.delete("inc-1")
    assert records.list() == []


@contextlib.contextmanager
def full_disk(records, monkeypatch):
    def no_room(record):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "_write", no_room)
        yield


def test_record_that_could_not_be_written_is_written_when_there_is_room(
    records, tmp_path, monkeypatch
):
    """The next agent reads the folder, and would find the session frozen still."""

    records.save(record(Stage.CAPTURED))
    with full_disk(records, monkeypatch):
        records.note(record(Stage.FAILED))
        records.write_remembered()
    next_agent = Records(tmp_path / "records")
    assert next_agent.find("inc-1").stage is Stage.CAPTURED

    records.write_remembered()

    assert next_agent.find("inc-1").stage is Stage.FAILED
    next_agent.save(record(Stage.CAPTURING))
    records.write_remembered()  # nothing is left to be written
    assert next_agent.find("inc-1").stage is Stage.CAPTURING
