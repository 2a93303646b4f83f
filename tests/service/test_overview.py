"""The managers' pages and the routes of what sessions did over time: who sees what."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import GpuSample, KeptState, Phase, SessionKey
from jupyterhub_gpu_reclaim.controlplane.decide.room import CrowdedCard
from jupyterhub_gpu_reclaim.controlplane.sessions.history import MINUTES, Line
from jupyterhub_gpu_reclaim.controlplane.sessions.totals import Point, StoreUse, Totals
from jupyterhub_gpu_reclaim.service.web.manager.table import ROWS

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.forms import Browser, Tags

ADA, BOB = SessionKey("ada"), SessionKey("bob", "train")


def line_of(key: SessionKey) -> Line:
    return Line(key=key, end=1.0, gpu_percent=[5.0] * MINUTES, memory=[10**9] * MINUTES)


@pytest.fixture
def root(service):
    return Browser(service, "token-root")


async def test_lines_are_those_that_the_caller_may_see(service):
    service.control.lines_known = [line_of(ADA), line_of(BOB)]
    service.control.put("ada")
    service.control.put("bob", "train")

    async def keys(path: str, token: str = "token-ada") -> list[str]:
        answer = await service.call(path, token)
        lines = msgspec.json.decode(answer.body, type=list[Line])
        return [str(line.key) for line in lines]

    assert await keys("api/lines") == ["ada/"]
    assert await keys("api/lines", "token-root") == ["ada/", "bob/train"]
    assert await keys("api/lines?session=bob/train&session=nobody/") == []
    assert await keys("api/lines?session=bob/train", "token-root") == ["bob/train"]


async def test_lines_of_too_many_names_are_a_bad_request(service, failure):
    response = await service.call("api/lines?" + "session=ada/&" * 501)
    assert response.code == 400
    assert "at most 500" in failure(response).message


async def test_what_tells_of_everybody_is_for_managers(service, failure):
    path = "api/report"
    refused = await service.call(path)
    assert refused.code == 403
    assert failure(refused).code == "forbidden"
    assert (await service.call(path, "")).code == 401
    assert (await service.call(path, "token-root")).code == 200


async def test_store_use_is_told_user_by_user(service, root):
    use = StoreUse(
        user="ada", checkpoints=2, logical_bytes=3 * 10**9, stored_bytes=10**9
    )
    service.control.store_known = [use]
    page = (await root.get("store")).body.decode()
    assert "1.0 GB" in page
    assert "2 checkpoints of 1 user:" in page


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
    service.control.lines_known = [line_of(BOB)]
    service.control.put(
        "bob",
        "train",
        gpus=[GpuSample(uuid="x", name="NVIDIA A100", memory=12 * 10**9)],
        facts={"node": "gpu-7"},
    )
    service.control.put("cy", phase=Phase.RESUMING, facts={"place": 2})
    page = (await root.get("all")).body.decode()
    assert "12 GB on A100" in page
    assert "GPU use of the last hour: 5 % on average" in page
    assert "gpu-7" in page
    assert "1 waiting for a GPU" in page
    assert "number 2 in the queue" in page


async def test_card_that_needs_fewer_seats_is_named(service, root):
    service.control.crowded_known = {"f00d": CrowdedCard(name="NVIDIA A100", wakes=3)}
    page = (await root.get("all")).body.decode()
    assert "GPU NVIDIA A100 (f00d) has too many sessions: 3 times in the last" in page


async def test_summary_shows_the_present_and_the_plot(service, root):
    points = [Point(at=1000.0 + 300 * n, gpus_freed=n) for n in range(3)]
    now = Point(at=1900.0, gpus_in_use=7, gpus_freed=2, sessions={"suspended": 2})
    service.control.totals_known = Totals(
        now=now, step=300, points=points, gpu_seconds_freed=7200.0
    )
    part = (await root.part("all/summary?hours=168")).body.decode()
    assert service.control.calls[-1] == ("totals", 168)
    assert "in the last 7 days; 0 in total" in part
    assert "<dd>2.0</dd>" in part  # GPU-hours
    assert "<dd>7</dd>" in part
    assert 'class="area freed"' in part
    assert [a["data-state"] for a in Tags(part).all("a") if "data-state" in a] == [
        "suspended"
    ]


async def test_summary_counts_every_checkpoint_that_is_in_the_store(service, root):
    kept = [
        KeptState(
            id=f"c{n}",
            generation=n,
            created=1.0,
            stored_bytes=10**9,
            keeping="superseded",
        )
        for n in (3, 2, 1)
    ]
    service.control.put("ada", kept=kept)
    part = (await root.part("all/summary")).body.decode()
    assert "<dd>3.0 GB</dd>" in part


async def test_summary_of_an_hour_shows_what_is_new_here(service, root):
    points = [Point(at=1000.0 + 300 * n, gpus_freed=n) for n in range(3)]
    service.control.totals_known = Totals(
        now=Point(at=1900.0), step=300, points=points, gpu_seconds_freed=900.0
    )
    part = (await root.part("all/summary?hours=1")).body.decode()
    assert service.control.calls[-1] == ("totals", 1)
    assert "in the last hour" in part
    assert "<dd>0.2</dd>" in part
    assert "<span>45 min ago</span>" in part


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


async def test_report_is_a_page_and_a_file_for_managers(service, root):
    assert (await service.call("report")).code == 403
    page = await root.get("report?month=2026-11")
    html = page.body.decode()
    assert "GPU-hours reclaimed in 2026-11" in html
    assert "&lt;b&gt;ada&lt;/b&gt;" in html
    assert "<b>ada" not in html
    assert "this machine" in html
    assert "report?month=2026-10" in html
    assert "<strong>12.2 GB·h</strong>" in html
    assert "They have been counted since <time" in html
    assert ">2026-11-02 06:13 UTC</time>." in html
    assert "allow-downloads" in page.headers["Content-Security-Policy"]
    file = await root.get("report.csv?month=2026-11")
    assert "attachment" in file.headers["Content-Disposition"]
    assert file.body.decode().splitlines()[1].startswith("2026-11,user,<b>ada</b>,")
    control = service.control  # of a month before naps were counted
    control.report_known = msgspec.structs.replace(
        control.report_known, nap_gb_hours=None, naps_since=None
    )
    html = (await root.get("report?month=2026-11")).body.decode()
    assert "Naps were not counted in this month." in html
    assert "Naps, GB·h" not in html
    control.report_known = msgspec.structs.replace(
        control.report_known, gpu_hours=0.063, nap_gb_hours=0.0, naps_since=1.0
    )
    html = (await root.get("report?month=2026-11")).body.decode()
    assert "<strong>0.06 GPU-hours</strong>" in html
    assert "No session napped in this month; naps have been counted since" in html
    assert "Naps, GB·h" not in html
    assert (await root.get("report?month=2026-13")).code == 400
    assert (await service.call("report.csv")).code == 403
