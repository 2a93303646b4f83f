"""The sessions page in a real browser: live, within its policy, small and dark too."""

import os
import re
import sys
import time
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tornado.web import create_signed_value

from jupyterhub_gpu_reclaim.common.drain import Drain, DrainReport
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    Finding,
    GpuSample,
    KeptState,
    Nap,
    Phase,
    SessionKey,
    Step,
    Usage,
)
from jupyterhub_gpu_reclaim.common.node_status import CardStatus, NodeHealth, NodeStatus
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.accounting import GpuCount

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.async_api import expect

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
    async with chromium_program.started_here() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def tab(service, chromium):
    """Opens a tab of somebody who is logged in; fails on any script or policy error."""
    problems: list[str] = []
    contexts = []

    async def opened(token: str = "token-root", path: str = "", **options: object):
        context = await chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(60_000)
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
#: A row of a table of the managers' page, a session's or another thing's.
ROW = ".tabulator-row:not(.tabulator-group)"
#: States in the table of all sessions that are cut off.
CUT_OFF = """[...document.querySelectorAll(".of-state .state")].filter((one) =>
  one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right
).map((one) => one.textContent)"""


def row(page, user: str):
    """The row of a user's session in the managers' table."""
    return page.locator(ROW).filter(has_text=user).first


async def shot(page, name: str) -> None:
    """Pictures for whoever asked for them (``--screenshots``)."""
    if folder := os.environ.get("GPU_RECLAIM_SCREENSHOTS"):
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            await page.screenshot(path=f"{folder}/{name}-{scheme}.png")


def fill(service) -> None:
    """Sessions in each state that looks different, with a day behind them."""
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
    service.control.gpus = lambda: [
        GpuCount("", model, "in_use", 14),
        GpuCount("", model, "idle", 3),
        GpuCount("", model, "freed", 15),
    ]
    service.control.gpu_seconds = lambda: 9e6


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


async def test_managers_page_is_live_filtered_and_steered_without_a_reload(
    service, tab
):
    service.control.put("bob", facts={"node": "n1"})
    for n in range(60):
        service.control.put(f"user{n:02d}", phase=Phase.SUSPENDED)
    page = await tab(path="all")
    rows, bob = page.locator(ROW), row(page, "bob")
    await page.evaluate("window.notReloaded = true")
    await expect(bob).to_be_visible()
    lost = Failure(code="wake_code", message="A new sentence.")
    service.control.put("bob", failure=lost)
    await expect(bob).to_contain_text("A new sentence.")
    search = page.get_by_role("searchbox", name="Search")
    await search.fill("wake_code")  # a reason's code is found
    await expect(rows).to_have_count(1)
    await expect(page.get_by_text("1 session of 61")).to_be_visible()
    assert page.url.endswith("text=wake_code")
    await page.get_by_role("button", name="60 suspended").click()
    await expect(rows).to_have_count(0)
    await page.get_by_role("button", name="61 all").click()
    await search.fill("n1")
    service.control.put("carl", facts={"node": "n1"})
    await expect(rows).to_have_count(2)
    await search.fill("bob")

    # by keyboard, while it changes
    suspend = page.get_by_role("button", name="Suspend now: bob, Default server")
    await suspend.focus()
    service.control.put("bob", facts={"node": "n1", "opted_out_by": "root"})
    await expect(bob).to_contain_text("(set by root)")
    await expect(suspend).to_be_focused()

    # another page was quicker, once
    async def refuse(key: SessionKey, by: str) -> None:
        raise Refused(Reason.WRONG_PHASE, phase="resuming", action="be suspended")

    right, service.control.suspend = service.control.suspend, refuse
    await page.keyboard.press("Enter")
    ask = page.get_by_role("dialog", name="Suspend now: bob/?")
    await expect(ask).to_contain_text("not known whether it is in use")
    await ask.get_by_role("button", name="Suspend").click()
    await expect(page.locator("#notice")).to_contain_text("cannot be suspended")
    service.control.suspend = right
    await suspend.click()
    await ask.get_by_role("button", name="Suspend").click()
    await expect(bob).to_contain_text("Suspending")
    head = page.get_by_role("button", name="Session", exact=True)
    await search.fill("")
    await head.focus()
    for order in ("ascending", "descending"):
        await page.keyboard.press("Enter")
        column = page.get_by_role("columnheader", name="Session")
        await expect(column).to_have_attribute("aria-sort", order)
    await expect(rows.first).to_contain_text("user59")
    await page.reload()
    await expect(rows.first).to_contain_text("user59")  # the address says it


async def test_order_for_many_says_who_is_at_work_and_asks(service, tab):
    now = time.time()
    used = {"watched": 900, "sample_age": 1}
    busy = Usage(at=now, last_active=now, busy_kernel="a.ipynb", **used)
    calm = Usage(at=now, last_active=now - 9000, **used)
    service.control.put("ada", usage=busy)
    for name in ("bob", "cy"):
        service.control.put(name, usage=calm)
    service.control.put("dora", phase=Phase.SUSPENDED)
    page = await tab(path="all")
    await page.get_by_role("checkbox", name="Select all that are listed").check()
    await expect(page.get_by_text("4 of 4 selected")).to_be_visible()
    selected = page.get_by_role("group", name="Selected")
    await selected.get_by_role("button", name="Suspend").click()
    ask = page.get_by_role("dialog", name="Suspend now: 3 sessions?")
    await expect(ask).to_contain_text("1 of them is at work: ada/.")
    await expect(ask).to_contain_text("It does not apply to 1 of the 4 selected now.")
    assert await axe.problems_there(page) == []
    await shot(page, "service-bulk")
    await page.keyboard.press("Escape")
    assert service.control.calls == []
    await selected.get_by_role("button", name="Suspend").click()
    await ask.get_by_role("button", name="Only the 2 at rest").click()
    notice = page.locator("#notice")
    await expect(notice).to_have_text("2 sessions are being suspended.")
    assert {str(call[1]) for call in service.control.calls} == {"bob/", "cy/"}
    await expect(page.get_by_role("checkbox", checked=True)).to_have_count(0)

    await page.get_by_role("checkbox", name="Select ada").check()
    await selected.get_by_role("button", name="Resume").click()
    await expect(notice).to_contain_text("None of these sessions is in a state for")
    service.control.put("ada", phase=Phase.WARNED)  # the double wants it running
    await selected.get_by_role("button", name="Suspend").click()
    ask = page.get_by_role("dialog", name="Suspend now: ada/?")
    await ask.get_by_role("button", name="Suspend").click()
    told = "0 sessions are being suspended. 1 not: ada/: A session that is"
    await expect(notice).to_contain_text(told)


async def test_what_needs_somebody_stands_first_with_its_cure(service, tab):
    lost = Failure(code="file_missing", message="It is gone.")
    service.control.put("ada", phase=Phase.SUSPENDED, failure=lost)
    service.control.put("bob", phase=Phase.SUSPENDED)
    service.control.put("eve", failure=Failure(code="second_tree", message="Twice."))
    node_with_cards(service)
    up, gone = service.control.nodes_known
    why = finding(Reason.AGENT_UNREACHABLE)
    gone = msgspec.structs.replace(gone, silence=why)
    drain = Drain(node="gpu-1", by="root", since=time.time() - 60)
    service.control.nodes_known = [msgspec.structs.replace(up, drain=drain), gone]
    service.control.drains_known["gpu-1"] = DrainReport(drain=drain)
    page = await tab(path="store")
    first = page.get_by_role("region", name="Needs attention")
    await expect(first).to_contain_text("gpu-2 has been silent for")
    await expect(first).to_contain_text(why.hint)
    await expect(first).to_contain_text(
        "1 session cannot get back (ada, Default server)"
    )
    await first.get_by_role("button", name="file_missing (1)").click()
    await page.wait_for_url("**/all?state=lost&text=file_missing")
    await expect(page.locator(ROW)).to_have_count(1)
    await expect(first).to_contain_text("1 session has a failure (eve, Default server)")
    await expect(first).to_contain_text("has been drained since")
    await expect(first).to_contain_text("(by root): no session can start here.")

    def undrained(node: str, by: str) -> None:
        service.control.nodes_known = [up, gone]

    service.control.undrain = undrained
    await first.get_by_role("button", name="Undrain gpu-1").click()
    await expect(page.locator("#notice")).to_contain_text("can start on gpu-1 again")
    await expect(first).not_to_contain_text("drained since")


async def test_table_is_grouped_by_card_and_its_sums_follow_without_a_reload(
    service, tab
):
    node_with_cards(service)
    page = await tab(path="all")
    await page.get_by_label("Group by").select_option("card")
    heads = page.locator(".group-head")
    await expect(heads.nth(0)).to_contain_text("75 GB of 141 GB held by 2 sessions")
    await expect(heads.nth(1)).to_contain_text("Without a GPU")
    await expect(page.locator(ROW)).to_have_count(3)
    assert page.url.endswith("by=card")
    suspend = page.get_by_role("button", name="Suspend now: chen")
    await suspend.focus()
    gpus = [GpuSample(uuid="a1" * 16, memory=31 * 10**9)]
    service.control.put("chen", gpus=gpus)
    await expect(heads.nth(0)).to_contain_text("76 GB of 141 GB")
    await expect(suspend).to_be_focused()


async def test_nodes_say_who_holds_what_and_a_drain_asks_with_who_is_at_work(
    service, tab
):
    node_with_cards(service)
    service.control.put("chen", facts={"node": "gpu-1"})
    page = await tab(path="nodes")
    gpu = page.locator("#cards").get_by_role("row").filter(has_text="a1a1a1a1").first
    await expect(gpu).to_contain_text("89 GB of 141 GB used, 74 % busy")
    held = gpu.get_by_role("listitem")
    await expect(held).to_have_text(
        [
            re.compile("dora Default server 45 GB, not used for 1 h 30 min"),
            re.compile("chen Default server 30 GB"),
            re.compile(r"14 GB used outside sessions \(driver, other programs\)"),
        ]
    )
    naps = page.locator("#cards").get_by_text("naps, 12 GB moved out")
    await expect(naps.first).to_be_visible()
    await page.get_by_role("button", name="Drain gpu-1").click()
    ask = page.get_by_role("dialog", name="Drain gpu-1?")
    await expect(ask).to_contain_text("1 of them is at work: chen/.")
    await ask.get_by_label("When will the machine go away?").select_option("600")
    await ask.get_by_role("button", name="Drain").click()
    await expect(page.locator("#notice")).to_have_text("gpu-1 is being drained.")
    assert ("drain", "gpu-1", 600.0, False, "root") in service.control.calls


async def test_checkpoints_are_sorted_and_deleted_once_that_is_confirmed(service, tab):
    kept = [
        KeptState(id=name, generation=1, created=at, stored_bytes=size, **more)
        for name, at, size, more in (
            ("c1", 1e9, 5 * 10**9, {"keeping": "current", "deletable": True}),
            ("c2", 2e9, 9 * 10**9, {"keeping": "aside", "deletable": True}),
            ("c3", 3e9, 7 * 10**9, {"keeping": "aside", "deletable": False}),
        )
    ]
    point = {"save_point": True, "name": "before the exam", "keeping": "superseded"}
    kept.append(KeptState(id="c4", generation=1, created=4e9, deletable=True, **point))
    service.control.put("ada", kept=kept)
    page = await tab(path="store?by=user")
    rows = page.locator(ROW)
    sizes = [re.compile(size) for size in ("9.0 GB", "7.0 GB", "5.0 GB", "0 B")]
    await expect(rows).to_have_text(sizes)
    await expect(rows.nth(3)).to_contain_text("save point “before the exam”")
    await expect(page.locator(".group-head")).to_have_text(["ada4 checkpoints, 21 GB"])
    await expect(
        page.get_by_role("button", name=re.compile("^Delete the"))
    ).to_have_count(3)
    await page.get_by_role("checkbox", name="Select all that are listed").check()
    await page.get_by_role("button", name="Delete…", exact=True).first.click()
    ask = page.get_by_role("dialog", name="Delete 3 checkpoints (14 GB)?")
    await expect(ask).to_contain_text("1 suspended session of these loses programs")
    await expect(ask).to_contain_text("1 of the 4 selected are in use, and stay.")
    await ask.get_by_role("button", name="Delete for good").click()
    told = "3 checkpoints deleted for good."
    await expect(page.locator("#notice")).to_have_text(told)
    deleted = {call[3] for call in service.control.calls if call[0] == "discard"}
    assert deleted == {"c1", "c2", "c4"}


async def test_names_and_sentences_of_sessions_are_never_markup(service, tab):
    evil = "<img src=x onerror=window.hacked=1><b class=evil>x</b>"
    gpus = [GpuSample(uuid="a1" * 16, name=evil, memory=9)]
    said = {"message": evil, "hint": evil, "code": evil}
    verdict = Decision(reclaim=False, code=evil, message=evil)
    point = KeptState(
        id=evil, generation=1, created=1.0, keeping=evil, name=evil, save_point=True
    )
    known = {"gpus": gpus, "kept": [point], "facts": {"node": evil}}
    service.control.put(evil, evil, verdict=verdict, **known)
    lost = Failure(**said)
    service.control.put(evil, "x", phase=Phase.SUSPENDED, failure=lost, **known)
    drain = Drain(node=evil, by=evil, since=1.0, why=evil)
    card = CardStatus(uuid="a1" * 16, name=evil)
    status = NodeStatus(
        host=evil, version=evil, cards=[card], findings=[Finding(**said)]
    )
    service.control.nodes_known = [NodeHealth(node=evil, status=status, drain=drain)]
    page = await tab(path="all")
    groups = [f"all?by={by}" for by in ("card", "node", "user", "why")]
    for path in ("all", *groups, "nodes", "store?by=user"):
        await page.goto(service.url + path)
        await expect(page.locator(ROW).first).to_contain_text("<img src=x")
        await expect(page.locator("#attention")).to_contain_text("<img src=x")
        assert await page.locator(".evil").count() == 0
        assert not await page.evaluate("window.hacked")
    await page.set_viewport_size({"width": 360, "height": 700})
    await expect(page.locator(".phone").first).to_contain_text("<img src=x")
    assert await page.locator(".evil").count() == 0


async def test_address_sorted_by_a_column_of_wide_screens_is_sorted_on_narrow_ones(
    service, tab
):
    now = time.time()
    for n, idle in enumerate((900, 7200, 60)):
        used = Usage(at=now, watched=9000, sample_age=1, last_active=now - idle)
        service.control.put(f"user{n}", usage=used)
    for width in (1280, 360):
        page = await tab(
            path="all?sort=idle&dir=desc", viewport={"width": width, "height": 800}
        )
        names = [re.compile(f"user{n}") for n in (1, 0, 2)]
        await expect(page.locator(ROW)).to_have_text(names)


async def test_three_thousand_sessions_have_few_rows_in_the_page(service, tab):
    for n in range(3000):
        service.control.put(f"user{n:04d}", facts={"node": f"n{n % 9}"})
    page = await tab(path="all?sort=session")
    rows = page.locator(ROW)
    await expect(rows.first).to_contain_text("user0000")
    await expect(page.get_by_text("3000 sessions", exact=True)).to_be_visible()
    assert await rows.count() < 100
    await page.locator(".tabulator-tableholder").evaluate("one => one.scrollTo(0, 1e9)")
    await expect(row(page, "user2999")).to_be_visible()
    await page.get_by_role("checkbox", name="Select all that are listed").check()
    await expect(page.get_by_role("checkbox", name="Select user2999")).to_be_checked()
    await page.get_by_role("searchbox").fill("user1234")
    await expect(rows).to_have_count(1)


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
    )
    lost = NodeHealth(node="gpu-2", status=status, silent_since=now - 75)
    service.control.nodes_known = [NodeHealth(node="gpu-1", status=status), lost]


async def test_reason_of_a_session_can_be_read_at_1280_pixels(service, tab):
    fill(service)
    old = service.control.views[SessionKey("dora", "thesis")]
    more = {"verdict": old.verdict, "gpus": old.gpus, "facts": {"node": NODE}}
    for n in range(50):
        service.control.put(f"user-of-a-course-{n:02d}", "assignment", **more)
    page = await tab(path="all", viewport={"width": 1280, "height": 800})
    await expect(page.locator("#sessions")).to_contain_text("Suspending soon")
    assert await page.evaluate(CUT_OFF) == []
    await shot(page, "service-all-states")
    await page.get_by_role("searchbox").fill("user-of-a-course-07")
    one = row(page, "user-of-a-course-07")
    cut = await one.locator(".why").evaluate("w => w.scrollHeight - w.clientHeight")
    assert cut <= 1, "the sentence is there in full"
    assert (await one.bounding_box())["height"] < 100
    cell = one.locator(".cut")
    end = cell.locator("span").last  # by which nodes differ
    assert await end.inner_text() == "f-x7kq"
    cell, end = await cell.bounding_box(), await end.bounding_box()
    assert end["x"] + end["width"] <= cell["x"] + cell["width"] + 1


@pytest.mark.long
async def test_pages_fit_a_phone_and_a_desk(service, tab):
    fill(service)
    node_with_cards(service)
    for name, width, scheme in (("phone", 360, "dark"), ("desk", 1400, "light")):
        size = {"width": width, "height": 1000}
        page = await tab(viewport=size, color_scheme=scheme)
        others = ("store", "log", "nodes")
        for path in ("all", "all?by=card", "mine", *others):
            await page.goto(service.url + path)
            if path not in ("mine", "log"):
                await expect(page.locator("#view[aria-busy]")).to_have_count(0)
            overflow = "document.documentElement.scrollWidth - innerWidth"
            assert await page.evaluate(overflow) <= 0, path
            assert await axe.problems_there(page) == [], path
            await shot(page, f"service-{path.replace('?', '-')}-{name}")
        await page.goto(service.url + "sessions/ada/notes")
        await page.get_by_text("Start fresh…").click()
        await expect(page.get_by_role("button", name="Start fresh")).to_be_visible()
        assert await axe.problems_there(page) == []
        await shot(page, f"service-fresh-{name}")


async def test_start_fresh_leaves_the_page_for_the_hubs_of_the_start(service, tab):
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c1")
    page = await tab("token-ada")
    await page.route("**/start-fresh", lambda route: route.fulfill(body="It starts."))
    await page.goto(service.url + "sessions/ada/-")
    await page.get_by_text("Start fresh…").click()
    await page.get_by_role("button", name="Start fresh").click()
    await expect(page.get_by_text("It starts.")).to_be_visible()


async def test_times_are_the_readers_own(service, tab):
    """In Nepal, where nobody's server is: a quarter of an hour off."""
    kept = "Kept until 2026-01-02 03:04 UTC at the request of ada."
    service.control.put(
        "ada", verdict=Decision(reclaim=False, code="kept", message=kept)
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
    await page.goto(service.url + "sessions/ada/-")
    await expect(page.get_by_text("Checkpoint of 13 Sept 2020, 18:11")).to_be_visible()
