"""The sessions page in a real browser: live, within its policy, small and dark too."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tornado.web import create_signed_value

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    GpuSample,
    KeptState,
    Nap,
    Phase,
    SessionKey,
    Step,
    Usage,
)
from jupyterhub_gpu_reclaim.common.node_status import (
    CardStatus,
    NodeHealth,
    NodeStatus,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.accounting import GpuCount

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.async_api import async_playwright, expect

from tests.service.conftest import checkpoint, running
from tests.support import axe
from tests.support import chromium as chromium_program

LOGO = Path(sys.prefix) / "share/jupyterhub/static/images/jupyterhub-80.png"
# A page asks again after ten times what its last answer took: no time is promised.
expect.set_options(timeout=60_000)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),  # the browser's
    chromium_program.NEEDED,
]


@pytest_asyncio.fixture(loop_scope="module")
async def service():
    """A service of the test's own, in the browser's event loop."""
    async with running() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    """The browser; each tab has a profile of its own."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=chromium_program.PATH, args=chromium_program.ARGUMENTS
        )
        yield chromium
        await chromium.close()


@pytest_asyncio.fixture(loop_scope="module")
async def tab(service, chromium):
    """Opens a tab of somebody who is logged in; fails on any script or policy error."""
    problems: list[str] = []
    contexts = []

    async def opened(token: str = "token-root", path: str = "", **options: object):
        context = await chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        signed = create_signed_value(
            service.app.settings["cookie_secret"], "service-gpu-reclaim", token
        ).decode()
        await context.add_cookies(
            [{"name": "service-gpu-reclaim", "value": signed, "url": service.url}]
        )
        page = await context.new_page()
        # the Hub is not here: only the service runs
        await page.route("**/hub/logo", lambda route: route.fulfill(path=LOGO))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda line: (
                problems.append(line.text)
                if line.type == "error" and "status of 409" not in line.text
                else None
            ),
        )
        await page.goto(service.url + path)
        return page

    yield opened
    for context in contexts:
        await context.close()
    assert problems == []


NODE = "gke-cluster-gpu-pool-a100-80gb-1f2e3d4f-x7kq"
#: States in the table of all sessions that are cut off.
CUT_OFF = """[...document.querySelectorAll("#sessions td .state")].filter((one) =>
  one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right
).map((one) => one.textContent)"""


async def shot(page, name: str) -> None:
    """Pictures for whoever asked for them (``--screenshots``)."""
    if folder := os.environ.get("GPU_RECLAIM_SCREENSHOTS"):
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            await page.screenshot(path=f"{folder}/{name}-{scheme}.png")


def fill(service) -> int:
    """Sessions in each state that looks different, with a day behind them; how many."""
    put, now = service.control.put, time.time()
    step = Step(step="dump", title="Saving the memory", state="done", seconds=3.4)
    under_way = Step(step="write", title="Writing it to the store", bytes=7 * 10**8)
    busy = Decision(
        reclaim=False, code="kernel_busy", message="Kernel train.ipynb is busy."
    )
    used = Decision(
        reclaim=False,
        code="recently_active",
        message="It was used 9 min ago; it is idle after 15 min without use.",
        at=now + 360,
    )
    lost = Failure(
        code="file_missing", message="The file data.bin is gone.", hint="Put it back."
    )
    saved = {"phase": Phase.SUSPENDED, "checkpoint": "c1"}
    for user, server, changes in (
        ("root", "", {"verdict": busy}),
        ("root", "training", {"phase": Phase.SUSPENDING, "steps": [step, under_way]}),
        ("ada", "notes", {**saved, "failure": lost}),
        ("bob", "", {"phase": Phase.RESUMING, "steps": [step]}),
        ("chen", "", {"verdict": busy, "kept_until": now + 3300}),
        ("dora", "thesis", {"verdict": used}),
        ("emil", "", {"phase": Phase.WARNED, "suspends_at": now + 55}),
        ("fatima", "", saved),
        ("grace", "", {"phase": Phase.RESUMING, "facts": {"place": 1}}),
    ):
        key = SessionKey(user, server)
        told = {"since": now - 4000, "facts": {"gpus_held": 1}, **changes}
        info = msgspec.structs.replace(checkpoint(key), created=now - 4000)
        told["last_suspend"] = info if "phase" in changes else None
        if told.get("phase") in (None, Phase.WARNED):
            memory, works = 12 * 10**9, told.get("verdict") is busy
            told["gpus"] = [GpuSample(uuid=user, name="NVIDIA A100", memory=memory)]
            told["usage"] = Usage(
                at=now,
                watched=900,
                sample_age=1,
                last_active=now if works else now - 600,
                gpu_percent=85.0 if works else 0.0,
            )
        put(user, server, **told)
    model = "NVIDIA A100"
    service.control.gpus_known = [
        GpuCount("", model, "in_use", 14),
        GpuCount("", model, "idle", 3),
        GpuCount("", model, "freed", 15),
    ]
    service.control.gpu_seconds_known = 9e6
    return len(service.control.views)


async def test_page_follows_changes_and_an_open_confirmation_stays_open(service, tab):
    service.control.put("ada")
    page = await tab("token-ada")
    card = page.locator('[data-session="ada/"]')
    await expect(card).to_contain_text("Running")
    await page.evaluate("window.notReloaded = true")
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c1")
    await expect(card).to_contain_text("Suspended")
    service.control.put("ada", "new")
    await expect(page.locator('[data-session="ada/new"]')).to_contain_text("Running")
    assert await page.evaluate("window.notReloaded")

    await card.get_by_text("Delete suspended session…").click()
    button = page.get_by_role("button", name="Delete for good")
    await button.focus()
    service.control.put("ada", failure=Failure(code="x", message="A new sentence."))
    await expect(page.get_by_text("A new sentence.")).to_be_visible()
    await expect(button).to_be_focused()
    await button.click()
    await expect(page.get_by_role("status")).to_have_text("It was deleted for good.")
    assert service.control.calls[-1][0] == "discard"


async def test_buttons_work_without_scripts(service, tab):
    service.control.put("ada")
    page = await tab("token-ada", java_script_enabled=False)
    await page.get_by_role("button", name="Suspend now").click()
    await page.wait_for_url("**/mine?done=suspend")
    assert "Suspending" in await page.content()


async def test_overview_is_live_filtered_and_steered_without_a_reload(service, tab):
    service.control.put("bob", facts={"node": "n1"})
    for n in range(60):
        service.control.put(f"user{n:02d}", phase=Phase.SUSPENDED)
    page = await tab(path="all")
    bob = page.locator('tr[data-session="bob/"]')
    await page.evaluate("window.notReloaded = true")
    service.control.put("bob", failure=Failure(code="x", message="A new sentence."))
    await expect(bob).to_contain_text("A new sentence.")

    await page.get_by_role("link", name="Next").click()
    await expect(page.locator("#count")).to_have_text("51 to 61 of 61 sessions")
    await page.get_by_label("Search").fill("n1")
    await expect(page.locator("tr[data-session]")).to_have_count(1)
    assert page.url.endswith("/all?text=n1&sort=wasted")

    # the rest by keyboard alone
    await bob.get_by_text("More", exact=True).focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(bob.get_by_text("Keep running for 1 h")).to_be_focused()
    service.control.put("bob", facts={"node": "n1", "opted_out_by": "root"})
    await expect(bob).to_contain_text("(set by root)")
    await expect(bob.get_by_text("Keep running for 1 h")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#notice")).to_have_text("The session is kept running.")
    await expect(bob.get_by_text("More", exact=True)).to_be_focused()
    assert service.control.calls[-1] == ("keep", SessionKey("bob"), 3600.0, "root")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await expect(bob.get_by_text("Keep running for 1 h")).to_be_hidden()

    # another page was quicker, once
    async def refuse(key: SessionKey, by: str) -> None:
        raise Refused(Reason.WRONG_PHASE, phase="resuming", action="be suspended")

    suspend, service.control.suspend = service.control.suspend, refuse
    await bob.get_by_role("button", name="Suspend now").click()
    await expect(page.locator("#notice")).to_contain_text("cannot be suspended")
    service.control.suspend = suspend
    await bob.get_by_role("button", name="Suspend now").click()
    await expect(bob).to_contain_text("Suspending")
    assert await page.evaluate("window.notReloaded")


async def test_table_is_grouped_by_card_and_its_sums_follow_without_a_reload(
    service, tab
):
    node_with_cards(service)
    page = await tab(path="all")
    await page.get_by_label("Group by").select_option("card")
    heads = page.locator("tr.group")
    await expect(heads.nth(0)).to_contain_text("75 GB of 141 GB held by 2 sessions")
    await expect(heads.nth(1)).to_contain_text("Without a GPU")
    await expect(page.locator("tr[data-session]")).to_have_count(3)
    assert page.url.endswith("/all?sort=wasted&by=card")
    more = page.get_by_label("More for chen")
    await more.focus()
    gpus = [GpuSample(uuid="a1" * 16, memory=31 * 10**9)]
    service.control.put("chen", gpus=gpus)
    await expect(heads.nth(0)).to_contain_text("76 GB of 141 GB")
    await expect(more).to_be_focused()


async def test_reported_programs_are_ended_and_a_login_renewed_by_a_button(
    service, tab
):
    second = Failure(code="second_tree", message="Programs run.", incarnation="i2")
    revoked = Failure(code="token_revoked", message="It was revoked.")
    service.control.put("ada", failure=second)
    service.control.put("bob", phase=Phase.SUSPENDED, failure=revoked)
    page = await tab(path="sessions/ada/-")
    await page.get_by_text("End the other programs").click()
    await page.get_by_role("button", name="End these programs").click()
    await expect(page.locator("#notice")).to_have_text("The programs were ended.")
    page = await tab(path="all")
    await page.get_by_role("button", name="Restore its login: bob").click()
    await expect(page.locator("#notice")).to_contain_text("The login will be restored")
    ended, renewed = service.control.calls
    assert ended == ("end_tree", SessionKey("ada"), "i2", "root")
    assert renewed == ("renew_login", SessionKey("bob"), "root")


def node_with_cards(service) -> None:
    """A node with two cards: two sessions and strangers on one, a nap on the other."""
    put, now, gb = service.control.put, time.time(), 10**9
    for user, memory, percent in (("chen", 30 * gb, 75.0), ("dora", 45 * gb, 0.0)):
        usage = Usage(
            at=now,
            watched=900,
            sample_age=1,
            last_active=now - 5400,
            gpu_percent=percent,
        )
        gpus = [GpuSample(uuid="a1" * 16, name="NVIDIA H200", memory=memory)]
        put(user, since=now - 9000, usage=usage, gpus=gpus)
    out = Nap(begun=now, gpus=[GpuSample(uuid="b2" * 16, memory=12 * gb)])
    put(
        "henri",
        phase=Phase.NAPPING,
        since=now - 600,
        facts={"nap": out, "node": "gpu-1"},
    )
    cards = [
        CardStatus(
            uuid=uuid, name="NVIDIA H200", total=141 * gb, free=free, busy_percent=busy
        )
        for uuid, free, busy in (("a1" * 16, 52 * gb, 74.0), ("b2" * 16, 140 * gb, 0.0))
    ]
    status = NodeStatus(
        host="gpu-1.example.org",
        version="0.1.0",
        criu="4.2.1",
        driver="580.65.06",
        cards=cards,
        state_free=900 * gb,
        store_free=12 * 10**12,
        store_capacity=30 * 10**12,
    )
    lost = NodeHealth(node="gpu-2", status=status, silent_since=now - 75)
    service.control.nodes_known = [NodeHealth(node="gpu-1", status=status), lost]


async def test_fifty_sessions_are_two_screens_and_say_their_states_in_full(
    service, tab
):
    fill(service)
    service.control.put("henri", phase=Phase.RELEASING)
    page = await tab(path="all", viewport={"width": 1280, "height": 800})
    await expect(page.locator("#sessions")).to_contain_text("Suspending soon")
    assert await page.evaluate(CUT_OFF) == []
    await page.locator("#sessions").scroll_into_view_if_needed()
    await shot(page, "service-all-states")
    for n in range(50):
        old = service.control.views[SessionKey("dora", "thesis")]
        more = {"verdict": old.verdict, "gpus": old.gpus, "facts": {"node": NODE}}
        service.control.put(f"user-of-a-course-{n:02d}", "assignment", **more)
    await page.reload()
    await expect(page.locator("tr[data-session]")).to_have_count(50)
    box = await page.locator("#sessions table").bounding_box()
    assert box["height"] < 2 * 800
    assert box["y"] < 800 / 2  # below numbers, filter and folded plot
    cell = page.locator("td.node", has_text=NODE).first
    end = cell.locator("span").last  # by which nodes differ
    assert await end.inner_text() == "f-x7kq"
    cell, end = await cell.bounding_box(), await end.bounding_box()
    assert end["x"] + end["width"] <= cell["x"] + cell["width"]
    await shot(page, "service-all-fifty")
    # rows that move leave the focus to its session
    await page.goto(service.url + "all?sort=state")
    pick = page.get_by_role("checkbox", name="Select user-of-a-course-07, assignment")
    await pick.focus()
    service.control.put("user-of-a-course-09", "assignment", phase=Phase.RELEASING)
    moved = page.locator("tr[data-session]").nth(1)
    await expect(moved).to_contain_text("user-of-a-course-09")
    await expect(pick).to_be_focused()


@pytest.mark.long
async def test_pages_fit_a_phone_and_a_desk(service, tab):
    fill(service)
    node_with_cards(service)
    many = len(service.control.views)
    for name, width, scheme in (("phone", 375, "dark"), ("desk", 1400, "light")):
        size = {"width": width, "height": 1000}
        page = await tab(viewport=size, color_scheme=scheme)
        others = ("store", "log", "nodes")
        filled = (("all", many), ("all?by=card", many), ("mine", 2))
        for path, rows in (*filled, *((one, 0) for one in others)):
            await page.goto(service.url + path)
            await expect(page.locator("[data-session]")).to_have_count(rows)
            overflow = "document.documentElement.scrollWidth - innerWidth"
            assert await page.evaluate(overflow) <= 0, path
            assert await axe.problems_there(page) == [], path
            await shot(page, f"service-{path.replace('?', '-')}-{name}")
        await page.goto(service.url + "sessions/ada/notes/fresh")
        await expect(page.get_by_role("button", name="Start fresh")).to_be_visible()
        assert await axe.problems_there(page) == []
        await shot(page, f"service-fresh-{name}")


async def test_times_are_the_readers_own(service, tab):
    """In Nepal, where nobody's server is: a quarter of an hour off."""
    kept = "Kept until 2026-01-02 03:04 UTC at the request of ada."
    service.control.put(
        "ada",
        verdict=Decision(reclaim=False, code="kept", message=kept),
    )
    page = await tab("token-ada", timezone_id="Asia/Kathmandu", locale="en-GB")
    await expect(page.get_by_text("Kept until 2 Jan 2026, 08:49 at")).to_be_visible()
    keep = page.get_by_role(
        "button", name=re.compile(r"for 1 h, until (\w+ )?\d\d:\d\d$")
    )
    await expect(keep).to_be_visible()
    assert await axe.problems_there(page) == []

    # and so are those of a page without a script of its own
    kept = [
        KeptState(id="c2", generation=2, created=1.7e9, keeping="current"),
        KeptState(id="c1", generation=1, created=1.6e9, keeping="aside"),
    ]
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c2", kept=kept)
    await page.goto(service.url + "sessions/ada/-/fresh")
    await expect(page.get_by_text("Checkpoint of 13 Sept 2020, 18:11")).to_be_visible()
