"""Numbers and names that cannot be, sealed by whoever has the key, harm nobody else."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common import codec, text
from jupyterhub_gpu_reclaim.common.errors import BadRequest, StoreError
from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    CheckpointInfo,
    GoneOn,
    Mark,
    SessionKey,
    Step,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.session_init import command_line
from jupyterhub_gpu_reclaim.store.format import manifest
from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber
from tests.store.doubles import KEYS
from tests.support.checkpoints import checkpoint

ADA = SessionKey("ada")
STEP = Step(step="dump", title="Saving the memory")
#: Fields of a manifest's facts, and what they cannot be.
FACTS = {
    "generation": [2**70, 2**31, -1],
    "term": [2**70, -1],
    "created": [1e308, -1.0],
    "frozen_seconds": [1e308],
    "logical_bytes": [2**70, -1],
    "stored_bytes": [2**64],
    "keeps": [{"c0": 2**70}],
    "key": [
        SessionKey("eve\n"),
        SessionKey("eve\u202egnp"),
        SessionKey("e", "\x1b[2J"),
    ],
    "incarnation": ["i\u2028j"],
    "name": ["a\nb", "\u202egnp", "x" * 256],
    "steps": [
        [msgspec.structs.replace(STEP, bytes=2**70)],
        [STEP, Step(step="a\nb", title="")],
    ],
}
CASES = [(field, value) for field, values in FACTS.items() for value in values]


def save(store, checkpoint: str = "good", user: str = "ada"):
    writer = store.begin(
        id=checkpoint, key=SessionKey(user), incarnation="i", generation=1
    )
    writer.add("pages", b"x" * 5000)
    writer.commit()
    return manifest.decode(store._catalogue.raw(checkpoint), checkpoint, KEYS)


def forged(backend, body) -> None:
    """The manifest is replaced by that one, sealed as it should be."""
    backend.replace(f"manifests/{body.info.id}", manifest.encode(body, KEYS))


@pytest.mark.parametrize(("field", "value"), CASES)
def test_manifest_that_cannot_be_is_refused_and_the_others_are_listed(
    store, backend, field, value
):
    save(store)
    body = save(store, "bad", "eve")
    info = msgspec.structs.replace(body.info, **{field: value})
    origins = [msgspec.structs.replace(one, key=info.key) for one in body.origins]
    forged(backend, msgspec.structs.replace(body, info=info, origins=origins))
    store._catalogue.forget("bad")
    assert [one.id for one in store.list()] == ["good"]
    with pytest.raises(StoreError) as refused:
        store.open("bad")
    assert refused.value.reason is Reason.CHECKPOINT_DAMAGED
    assert field in refused.value.message


def test_index_that_cannot_be_is_refused(store, backend):
    body = msgspec.structs.replace(save(store, "bad"), index=2**70)
    forged(backend, body)
    with pytest.raises(StoreError) as refused:
        store.open("bad")
    assert refused.value.reason is Reason.CHECKPOINT_DAMAGED


@pytest.mark.parametrize(
    "said",
    [
        Mark(aside=Aside(until=1e308)),
        Mark(aside=Aside(until=-1.0)),
        Mark(gone_on=GoneOn(incarnation="i", since=-1.0)),
        Mark(gone_on=GoneOn(incarnation="a\nb", since=1.0)),
        Mark(gone_on=GoneOn(incarnation="i" * 129, since=1.0)),
    ],
)
def test_mark_that_cannot_be_counts_as_none(store, said):
    save(store)
    store.mark("good", said, MarkNumber(1, 1))
    assert [one.mark for one in store.list()] == [Mark()]
    assert store.verify("good")


def record(**changes: Any) -> Record:
    facts = {
        "operation": "capture",
        "incarnation": "i1",
        "key": ADA,
        "stage": Stage.CAPTURED,
        "checkpoint": "c1",
        "init_pid": 7,
        "init_start": 9,
        "begun": 1.7e9,
    }
    return Record(**{**facts, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 2**70},
        {"begun": 1e308},
        {"as_of": 1e308},
        {"key": SessionKey("a\nb")},
        {"steps": [Step(step="dump", title="x", seconds=1e308)]},
    ],
)
def test_record_that_cannot_be_is_left_out_of_the_list(tmp_path, changes):
    records = Records(tmp_path)
    records.save(record())
    records.save(record(incarnation="i2", **changes))
    assert [one.incarnation for one in records.list()] == ["i1"]


@pytest.mark.parametrize("name", ["eve\n", "eve\u202e", "\x07", "\u2066e", "e" * 256])
def test_programs_under_a_name_that_nobody_may_have_are_no_session(name):
    arguments = command_line.InitArguments("i", name)
    words = ["python3", "session_init.py", command_line.written(arguments)]
    assert command_line.parse([word.encode() for word in words]) is None


NUMBERS = st.one_of(
    st.integers(), st.integers(2**31 - 2, 2**31 + 2), st.floats(allow_nan=False)
)
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["a\n", "\u202e", "é", ""]))


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    made = Journal(f"sqlite:///{tmp_path_factory.mktemp('journal')}/journal.sqlite")
    yield made
    made.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_whatever_is_taken_can_be_shown_and_written_down(journal, data):
    """Any number and text in the facts: refused, or good for journal and pages."""
    facts = msgspec.to_builtins(
        checkpoint("c1", ADA, created=1.5, logical_bytes=10, steps=[STEP])
    )
    for field in data.draw(st.sets(st.sampled_from(sorted(facts)), max_size=3)):
        value = facts[field]
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            continue
        facts[field] = data.draw(TEXTS if isinstance(value, str) else NUMBERS)
    facts["key"]["user"] = data.draw(st.one_of(st.just("ada"), TEXTS))
    facts["steps"][0]["seconds"] = data.draw(st.one_of(st.just(1.0), NUMBERS))
    try:
        info = codec.decode(msgspec.json.encode(facts), CheckpointInfo)
    except BadRequest:
        return
    datetime.fromtimestamp(info.created, UTC)
    text.size(info.logical_bytes * 1000)
    text.duration(info.frozen_seconds)
    text.moment(info.created)
    assert str(info.key).splitlines() == [str(info.key)]
    journal.keep([CheckpointRow(info=info)])
    row = journal.checkpoint(info.id)
    assert row is not None
    assert row.info == info
