"""The managers' pages, and the history: who sees what."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.models import (
    GpuSample,
    Phase,
    SessionKey,
    Usage,
)
from jupyterhub_gpu_reclaim.controlplane.decide.room import CrowdedCard
from jupyterhub_gpu_reclaim.controlplane.model.accounting import GpuCount
from jupyterhub_gpu_reclaim.controlplane.sessions.totals import StoreUse
from jupyterhub_gpu_reclaim.service.web.manager.table import ROWS

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.forms import Browser, Tags

ADA, BOB = SessionKey("ada"), SessionKey("bob", "train")


@pytest.fixture
def root(service):
    return Browser(service, "token-root")


async def test_store_use_is_told_user_by_user(service, root):
    use = StoreUse(
        user="ada", checkpoints=2, logical_bytes=3 * 10**9, stored_bytes=10**9
    )
    service.control.store_known = [use]
    page = (await root.get("store")).body.decode()
    assert "1.0 GB" in page
    assert "2 checkpoints of 1 user:" in page


async def test_managers_are_the_hubs_administrators_and_whom_a_role_names(service):
    """Neither who may stop the servers of a group, nor a program that may stop all."""
    service.control.put("ada")
    seen = {}
    for token in ("root", "hub-admin", "teacher", "culler", "bob"):
        answer = await service.call("api/sessions", f"token-{token}")
        seen[token] = len(json.loads(answer.body))
    assert seen == {"root": 1, "hub-admin": 1, "teacher": 0, "culler": 0, "bob": 0}


@pytest.mark.parametrize("path", ["all", "all/table", "all/summary", "store"])
async def test_managers_pages_are_for_managers(service, path):
    ada = Browser(service, "token-ada")
    response = await (ada.part(path) if "/" in path else ada.get(path))
    assert response.code == 403
    away = await Browser(service, "").get(path)
    assert away.code == (401 if "/" in path else 302)


async def test_overview_shows_a_page_of_the_table_and_never_more(service, root):
    service.control.put("user000")
    page = (await root.get("all")).body.decode()
    assert "1 to 1 of" not in page
    for n in range(ROWS + 1):
        service.control.put(f"user{n:03d}")
    page = (await root.get("all")).body.decode()
    rows = [tr for tr in Tags(page).all("tr") if "data-session" in tr]
    assert len(rows) == ROWS
    assert "1 to 50 of 51 sessions" in page
    part = (await root.part("all/table?page=2")).body.decode()
    tags = Tags(part)
    assert [t["data-session"] for t in tags.all("tr") if "data-session" in t] == [
        "user050/"
    ]
    assert not tags.all("html")


async def test_overview_shows_what_a_session_holds_and_did(service, root):
    service.control.put(
        "bob",
        "train",
        gpus=[GpuSample(uuid="x", name="NVIDIA A100", memory=12 * 10**9)],
        usage=Usage(at=1.0, watched=60, sample_age=0, last_active=1.0, gpu_percent=5),
        facts={"node": "gpu-7"},
    )
    service.control.put("cy", phase=Phase.RESUMING, facts={"place": 2})
    page = (await root.get("all")).body.decode()
    assert "12 GB on A100" in page
    assert 'data-label="GPU use">5 %<' in page
    assert "gpu-7" in page
    assert "1 waiting for a GPU" in page
    assert "number 2 in the queue" in page


async def test_card_that_needs_fewer_seats_is_named(service, root):
    service.control.crowded_known = {"f00d": CrowdedCard(name="NVIDIA A100", wakes=3)}
    page = (await root.get("all")).body.decode()
    assert "GPU NVIDIA A100 (f00d) has too many sessions: 3 times in the last" in page


async def test_summary_shows_the_present_and_what_was_given_back(service, root):
    service.control.gpus_known = [
        GpuCount("a", "H200", "in_use", 4),
        GpuCount("b", "H200", "in_use", 3),
        GpuCount("a", "H200", "idle", 1),
        GpuCount("a", "H200", "kept", 1),
        GpuCount("a", "H200", "freed", 1.5),
    ]
    service.control.gpu_seconds_known = 7200.0
    service.control.put("ada", phase=Phase.SUSPENDED)
    part = (await root.part("all/summary")).body.decode()
    found = re.findall(r"<dt>([^<]*).*?</dt>\s*<dd>([^<]*)</dd>", part)
    assert [(words.strip(), value) for words, value in found[:4]] == [
        ("GPUs in use", "7"),
        ("GPUs idle", "2"),
        ("GPUs freed", "1.5"),
        ("GPU-hours given back", "2.0"),
    ]
    assert [a["data-state"] for a in Tags(part).all("a") if "data-state" in a] == [
        "suspended"
    ]


async def test_summary_counts_every_checkpoint_that_is_in_the_store(service, root):
    uses = [
        StoreUse(user=user, checkpoints=2, logical_bytes=9, stored_bytes=size)
        for user, size in (("ada", 2 * 10**9), ("bob", 10**9))
    ]
    service.control.store_known = uses
    part = (await root.part("all/summary")).body.decode()
    assert "<dd>3.0 GB</dd>" in part


async def test_buttons_of_a_row_lead_back_to_the_same_rows(service, root):
    service.control.put("bob")
    xsrf = await root.xsrf()
    response = await root.post(
        "sessions/bob/-/suspend",
        _xsrf=xsrf,
        page="all",
        query="text=b&sort=idle&next=//evil.example",
    )
    where = "/services/gpu-reclaim/all?text=b&sort=idle&done=suspend"
    assert response.headers["Location"] == where


async def test_pin_is_for_managers_and_taken_back_by_all(service, root):
    service.control.put("ada")
    ada = Browser(service, "token-ada")
    refused = await ada.post("sessions/ada/-/pin", _xsrf=await ada.xsrf(), out="1")
    assert refused.code == 403
    await root.post("sessions/ada/-/pin", _xsrf=await root.xsrf(), out="1")
    await ada.post("sessions/ada/-/pin", _xsrf=await ada.xsrf(), out="0")
    assert service.control.calls == [
        ("opt_out", ADA, True, "root"),
        ("opt_out", ADA, False, "ada"),
    ]


async def test_form_that_a_script_sends_is_answered_in_words_not_pages(service, root):
    service.control.put("ada")
    sent = {"_xsrf": await root.xsrf(), "accept": "application/json"}
    done = await root.post("sessions/ada/-/suspend", **sent)
    assert json.loads(done.body) == "Suspending the session."
    again = await root.post("sessions/ada/-/suspend", **sent)
    assert again.code == 409
    assert "cannot be suspended" in json.loads(again.body)["message"]


async def test_page_of_one_session_tells_reasons_and_log(service):
    service.control.put("ada", "train")
    ada = Browser(service, "token-ada")
    page = (await ada.get("sessions/ada/train")).body.decode()
    assert "Why it is not suspended" in page
    assert "Kernel a is busy." in page
    assert "Suspending started." in page
    assert (await ada.get("sessions/bob/train")).code == 404
    service.control.put("ada", "train", phase=Phase.SUSPENDED)
    page = (await ada.get("sessions/ada/train")).body.decode()
    assert "Why it is" not in page


async def test_log_is_told_to_its_user_and_to_managers(service, root):
    ada = Browser(service, "token-ada")
    page = (await ada.get("log")).body.decode()
    assert "History of my sessions" in page
    assert (await ada.get("log?user=bob")).code == 404
    theirs = (await root.get("log?user=ada")).body.decode()
    assert "History of the sessions of ada" in theirs
    assert "It was deleted." in theirs
    assert "before=7" in theirs
    assert (await ada.get("log?before=x")).code == 400


async def test_events_of_one_user_without_the_state_at_the_start(service):
    service.control.put("ada")
    service.control.put("bob")
    got: list[bytes] = []
    call = service.call(
        "api/events?user=bob&state=0", "token-root", streaming_callback=got.append
    )
    reading = asyncio.ensure_future(call)
    while not service.control.readers:
        await asyncio.sleep(0.01)
    service.control.put("ada", phase=Phase.SUSPENDED)
    service.control.put("bob", phase=Phase.SUSPENDED)
    service.control.readers[0].put_nowait(None)
    await reading
    text = b"".join(got).decode()
    assert "present" not in text
    assert '"user":"bob"' in text
    assert '"user":"ada"' not in text
