"""The event log: each line of the audit, in order, whatever the disk does."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

import jupyterhub_gpu_reclaim
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import AuditLine, SessionKey
from jupyterhub_gpu_reclaim.controlplane import audit
from jupyterhub_gpu_reclaim.controlplane.audit import SENTENCES
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.session import SessionEvent, SessionRow
from jupyterhub_gpu_reclaim.service import event_log
from jupyterhub_gpu_reclaim.service.event_log import append, keeping

EVE = SessionKey('eve", "what": "resumed', "lab")
PACKAGE = Path(jupyterhub_gpu_reclaim.__file__).parent


@pytest.fixture
def journal(tmp_path):
    journal = Journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(audit, "PACE", 0.01)
    monkeypatch.setattr(audit, "PAUSE", 0.01)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "events.jsonl"


def happen(journal: Journal, *whats: str) -> None:
    for what in whats:
        line = AuditLine(at=1.5, key=EVE, who="root", what=what)
        journal.save(SessionRow(key=EVE), line)


def events(place: Path) -> list[str]:
    return [json.loads(text)["what"] for text in place.read_text().splitlines()]


async def until(holds) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


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
async def test_service_writes_while_it_runs_and_the_rest_at_its_end(journal, place):
    happen(journal, "started")  # before anybody asked for a log
    async with keeping(journal, str(place)):
        happen(journal, "warned")
        await until(place.read_text)
        happen(journal, "stays")
    told = [codec.decode(text, AuditLine) for text in place.read_text().splitlines()]
    assert told == [audit.told(line) for line in audit.after(journal, 1)]
    assert events(place) == ["warned", "stays"]
    assert place.stat().st_mode & 0o777 == 0o600


async def test_full_disk_holds_up_nothing_and_loses_nothing(
    journal, place, monkeypatch
):
    tries = []

    def full(where: str, text: bytes) -> None:
        tries.append(text)
        append(where if len(tries) > 2 else "/dev/full", text)

    async with keeping(journal, str(place)):
        monkeypatch.setattr(event_log, "append", full)
        happen(journal, "warned", "stays")
        await until(lambda: place.read_text().count("\n") == 2)
    assert events(place) == ["warned", "stays"]


async def test_log_that_is_not_wanted_is_not_made(journal, tmp_path):
    async with keeping(journal, ""):
        happen(journal, "warned")
    assert not [p for p in tmp_path.iterdir() if "events" in p.name]


# --- the file ------------------------------------------------------------------------
def test_file_that_was_rotated_is_made_anew(place):
    append(str(place), b"1\n")
    place.rename(place.with_suffix(".1"))
    append(str(place), b"2\n")
    assert place.with_suffix(".1").read_bytes() == b"1\n"
    assert place.read_bytes() == b"2\n"


def test_line_that_a_crash_has_cut_spoils_no_other(place):
    place.write_bytes(b'{"what": "war')
    append(str(place), b"{}\n")
    assert place.read_bytes() == b'{"what": "war\n{}\n'


async def test_place_that_cannot_be_written_is_told_at_the_start(journal, tmp_path):
    (tmp_path / "folder").mkdir()
    for where in (tmp_path / "missing" / "events", tmp_path / "folder"):
        with pytest.raises(Refused, match="cannot be written"):
            async with keeping(journal, str(where)):
                pass


def test_standard_output_takes_the_lines_too(capsys):
    append("-", b"{}\n")
    assert capsys.readouterr().out == "{}\n"
    os.fstat(1)  # it is still open
