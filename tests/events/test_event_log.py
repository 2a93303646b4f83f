"""The event log: each line of the audit, in order and valid, whatever the disk does."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from jsonschema import ValidationError

import jupyterhub_gpu_reclaim
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.controlplane.audit import SENTENCES, AuditReader
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import SessionEvent, SessionRow
from jupyterhub_gpu_reclaim.service.events import feed
from jupyterhub_gpu_reclaim.service.events.feed import Feed, feeding
from jupyterhub_gpu_reclaim.service.events.log import EventLog
from tests.support.manual_clock import ManualClock

ADA = SessionKey("ada", "lab")
AT = 1_700_000_000.25
PACKAGE = Path(jupyterhub_gpu_reclaim.__file__).parent


@pytest.fixture
def journal(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "events.jsonl"


def line(what: str = "released", **more: object) -> AuditLine:
    values = {"at": AT, "key": ADA, "who": "root", "what": what, **more}
    return AuditLine(**values)


def happen(journal: Journal, *whats: str) -> None:
    for what in whats:
        journal.save(SessionRow(key=ADA), line(what))


def lines(place: Path) -> list[dict]:
    return [json.loads(text) for text in place.read_text().splitlines()]


def events(place: Path) -> list[str]:
    return [found["event"] for found in lines(place)]


# --- one line ------------------------------------------------------------------------
def test_line_says_who_did_what_to_whose_session_when_and_why(place):
    log = EventLog(str(place))
    log.session(line("capture_failed", code="store_full", message="No room.", id=7))
    log.close()
    assert lines(place) == [
        {
            "__timestamp__": "2023-11-14T22:13:20.250000Z",
            "__schema__": "urn:jupyterhub-gpu-reclaim:event:session",
            "__schema_version__": "1",
            "__metadata_version__": 1,
            "number": 7,
            "event": "capture_failed",
            "username": "ada",
            "servername": "lab",
            "by": "root",
            "code": "store_full",
            "message": "No room.",
        }
    ]
    assert place.stat().st_mode & 0o777 == 0o600


def test_name_of_a_person_makes_no_line_of_its_own(place):
    log = EventLog(str(place))
    evil = SessionKey('eve\n{"event": "resumed"}\ud800', "\x1b[2J")
    log.session(line(key=evil, id=1))
    log.close()
    assert [found["username"] for found in lines(place)] == [evil.user]


def test_what_does_not_fit_its_schema_is_not_written(place):
    log = EventLog(str(place))
    with pytest.raises(ValidationError):
        log.session(line(id=0))
    log.close()
    assert place.read_text() == ""


# --- words ---------------------------------------------------------------------------
def test_everything_that_can_happen_has_a_sentence():
    named = {happened.name.lower() for happened in SessionEvent}
    for file in PACKAGE.rglob("*.py"):
        calls = re.findall(r"audit_line\(([^()]*)", file.read_text())
        named |= {w for call in calls for w in re.findall(r'"([a-zA-Z ]+)"', call)}
    assert {"keep", "opt out", "retention", "waits for a GPU"} <= named
    named |= {"forget", "new account"}  # by a variable
    assert named - SENTENCES.keys() == set()


# --- the audit as the source ---------------------------------------------------------
def test_lines_come_in_order_once_and_go_on_after_a_restart(journal, place):
    feeds = []
    for _ in range(2):
        log = EventLog(str(place))
        feeds.append((Feed(AuditReader(journal, "events"), log, ManualClock()), log))
        happen(journal, "ask to suspend", "suspend", "committed", "released")
        while feeds[-1][0].once():
            pass
        log.close()
    found = lines(place)
    once = ["ask to suspend", "suspend", "committed", "released"]
    assert events(place) == once * 2
    numbers = [each["number"] for each in found]
    assert numbers == sorted(set(numbers))


def test_crash_between_line_and_mark_repeats_the_line_and_loses_none(journal, place):
    trail = AuditReader(journal, "events")
    happen(journal, "warned", "stays")

    class Crashing:
        """A trail whose mark cannot be moved: the service dies right there."""

        next = trail.next

        def done(self, number: int) -> None:
            raise KeyboardInterrupt

    log = EventLog(str(place))
    with pytest.raises(KeyboardInterrupt):
        Feed(Crashing(), log, ManualClock()).once()
    Feed(AuditReader(journal, "events"), log, ManualClock()).once()
    log.close()
    assert events(place) == ["warned", "warned", "stays"]
    assert len({found["number"] for found in lines(place)}) == 2


def test_full_disk_holds_up_nothing_and_loses_nothing(journal, place):
    log = EventLog("/dev/full")
    trail = AuditReader(journal, "events")
    happen(journal, "warned", "stays")
    with pytest.raises(OSError, match="No space"):
        Feed(trail, log, ManualClock()).once()
    log = EventLog(str(place))
    Feed(AuditReader(journal, "events"), log, ManualClock()).once()
    log.close()
    assert events(place) == ["warned", "stays"]


async def test_service_writes_while_it_runs_and_the_rest_at_its_end(
    journal, place, monkeypatch
):
    monkeypatch.setattr(feed, "PACE", 0.01)
    async with feeding(journal, str(place), SystemClock()):
        happen(journal, "warned")
        async with asyncio.timeout(60):
            while not place.read_text():
                await asyncio.sleep(0.01)
        happen(journal, "stays")
    assert events(place) == ["warned", "stays"]


async def test_log_that_is_not_wanted_is_not_made(journal, tmp_path):
    before = set(tmp_path.iterdir())
    async with feeding(journal, "", SystemClock()):
        happen(journal, "warned")
    assert {p for p in tmp_path.iterdir() if "events" in p.name} <= before


# --- the file ------------------------------------------------------------------------
def test_file_that_was_rotated_is_made_anew(place):
    log = EventLog(str(place))
    log.session(line("warned", id=1))
    place.rename(place.with_suffix(".1"))
    log.session(line("stays", id=2))
    log.close()
    assert events(place.with_suffix(".1")) == ["warned"]
    assert events(place) == ["stays"]


def test_line_that_a_crash_has_cut_spoils_no_other(place):
    place.write_text('{"event": "war')
    log = EventLog(str(place))
    log.session(line("stays", id=1))
    log.close()
    cut, whole = place.read_text().splitlines()
    assert cut == '{"event": "war'
    assert json.loads(whole)["event"] == "stays"


def test_place_that_cannot_be_written_is_told_at_the_start(tmp_path):
    with pytest.raises(Refused, match="cannot be written"):
        EventLog(str(tmp_path / "missing" / "events"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused):
        EventLog(str(tmp_path / "folder"))


def test_standard_output_takes_the_lines_too(capsys):
    log = EventLog("-")
    log.session(line("warned", id=1))
    log.close()
    assert json.loads(capsys.readouterr().out)["event"] == "warned"
    os.fstat(1)  # it is still open
