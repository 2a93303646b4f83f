"""What each checkpoint is kept for, and until when: the table of ``retention``."""

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Aside,
    Failure,
    GoneOn,
    Phase,
    SessionKey,
)
from jupyterhub_gpu_reclaim.controlplane import retention
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    Keeping,
    SessionRow,
)
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from tests.support.checkpoints import checkpoint

KEY = SessionKey("ada")
NOW, GRACE, ASIDE = 1000.0, 10.0, 100.0
SETTINGS = Settings(grace=GRACE, set_aside=ASIDE, save_points=2)
TERMS = retention.Terms(SETTINGS, NOW)
ASKED = Failure(code="saved_found", message="")


def saved(of: str, incarnation: str = "i2", parent: str = "", **facts) -> CheckpointRow:
    """The row of a checkpoint; its number is the last letter of its id."""
    row = {x: facts.pop(x) for x in ("keeping", "expires") if x in facts}
    facts |= {"generation": int(of[-1]), "parent": parent}
    info = checkpoint(of, KEY, incarnation, **facts)
    return CheckpointRow(info=info, **row)


def session(phase: str, checkpoint: str = "c5", **facts) -> SessionRow:
    facts = {"incarnation": "i5", "resumed_at": 990.0, **facts}
    return SessionRow(key=KEY, phase=Phase(phase), checkpoint=checkpoint, **facts)


def kept(its: SessionRow, *rows: CheckpointRow, **terms) -> dict:
    found = retention.kept(its, rows, TERMS._replace(**terms))
    return {row.id: (row.keeping.value, row.expires) for row in found}


RUNS, RESTS = session("running"), session("suspended", incarnation="i2")
FOREVER = None


@pytest.mark.parametrize(
    ("its", "row", "as_what"),
    [
        (RUNS, saved("c5", keeping=Keeping.TO_DELETE), ("doomed", 0.0)),
        (session("running", "", bring_back="c5"), saved("c5"), ("wanted", FOREVER)),
        (RESTS, saved("c5"), ("current", FOREVER)),
        (session("releasing"), saved("c5"), ("current", FOREVER)),
        (session("resuming"), saved("c5"), ("current", FOREVER)),
        (
            session("suspended", claimed=True),
            saved("c5", keeping=Keeping.CURRENT, expires=7.0),
            ("current", 7.0),
        ),
        (RESTS, saved("c4", aside=Aside(until=7.0)), ("aside", 7.0)),
        (RUNS, saved("c4", aside=Aside(until=None)), ("aside", FOREVER)),
        (session("suspended", account="1"), saved("c4", account="2"), ("aside", None)),
        (session("running", account="1"), saved("c4", account="2"), ("aside", 1100.0)),
        (RUNS, saved("c5"), ("superseded", 1000.0)),
        (session("suspending"), saved("c5"), ("superseded", 1000.0)),
        (session("running", resumed_at=None), saved("c5"), ("superseded", FOREVER)),
        (RUNS, saved("c5", "i5", goes_on=True), ("superseded", FOREVER)),
        (RUNS, saved("c6", "i5"), ("superseded", NOW)),
        (session("suspending", ""), saved("c6", "i5"), ("superseded", 1010.0)),
        (RUNS, saved("c1"), ("aside", 1100.0)),
        (session("stopped", ""), saved("c1", "i5"), ("aside", 1100.0)),
        (session("suspended", failure=ASKED), saved("c1"), ("aside", FOREVER)),
        (RUNS, saved("c1", keeping=Keeping.ASIDE, expires=7.0), ("aside", 7.0)),
    ],
)
def test_each_line_of_the_table(its, row, as_what):
    assert kept(its, row) == {row.id: as_what}


def test_rule_that_saves_the_session_keeps_what_it_came_from():
    assert kept(RUNS, saved("c5"), ruled=True) == {"c5": ("superseded", None)}


@pytest.mark.parametrize("failure", [None, ASKED])
def test_what_the_current_one_came_from_goes_after_the_time_of_grace(failure):
    line = [saved("c1", "i0"), saved("c3", "i1", "c1"), saved("c5", "i2", "c3")]
    its = session("suspended", incarnation="i2", failure=failure)
    until = None if failure else NOW + GRACE
    assert kept(its, *line) == {
        "c1": ("superseded", until),
        "c3": ("superseded", until),
        "c5": ("current", None),
    }


@pytest.mark.parametrize("phase", ["stopped", "running"])
def test_what_a_fresh_start_put_aside_came_from_goes_after_the_time_of_grace(phase):
    rows = [saved("c1", "i1"), saved("c2", "i2", "c1", aside=Aside(until=7.0))]
    assert kept(session(phase, ""), *rows) == {
        "c1": ("superseded", NOW + GRACE),
        "c2": ("aside", 7.0),
    }


def test_last_few_save_points_and_named_ones_are_put_aside_beside_a_newer_one():
    points = [
        saved("c1", "i5", goes_on=True, name="good"),
        *(saved(f"c{n}", "i5", goes_on=True) for n in (2, 3, 4)),
    ]
    running = session("running", "c4")
    assert kept(running, *points) == {
        "c1": ("aside", NOW + ASIDE),
        "c2": ("superseded", NOW + GRACE),
        "c3": ("aside", NOW + ASIDE),
        "c4": ("superseded", None),
    }
    suspended = kept(session("suspended"), *points, saved("c5", "i5"))
    assert suspended["c4"] == ("aside", NOW + ASIDE)
    assert suspended["c3"] == ("superseded", NOW + GRACE)


def test_words_that_the_store_is_told_follow_what_the_session_is():
    left = saved("c5", aside=Aside(until=7.0))
    (row,) = retention.kept(RESTS, [left], TERMS)
    assert row.info.aside is None
    (row,) = retention.kept(RUNS, [row], TERMS)
    assert row.info.gone_on == GoneOn(incarnation="i5", since=NOW)
    (again,) = retention.kept(RUNS, [row], TERMS._replace(now=2000.0))
    assert again.info.gone_on == row.info.gone_on


def test_computed_again_it_is_the_same():
    rows = [saved("c1"), saved("c3", "i5"), saved("c5")]
    for its in (RUNS, RESTS, msgspec.structs.replace(RESTS, failure=ASKED)):
        once = retention.kept(its, rows, TERMS)
        assert retention.kept(its, once, TERMS._replace(now=NOW + 1)) == once
