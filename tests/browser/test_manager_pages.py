"""The administrator's own pages over real sessions: nodes, table, store."""

import signal
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from demo.admin import Admin
from demo.user import User
from tests.support.axe import problems
from tests.support.hub import wait_until
from tests.support.screenshots import shoot
from tests.support.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

SETTINGS = {"idle_after": 0, "sample_interval": 1, "simulated_gpus": True}
PAGES = ("all", "nodes", "store", "log", "mine")
#: An administrator is to know of a silent agent within so many seconds.
TOLD_SECONDS = 20


@pytest.fixture
def person(stack: Stack, new_name: str) -> Callable[[str], User]:

    def person(end: str) -> User:
        return User.arrived(stack, new_name + end)

    return person


@pytest.fixture
def service(sign_in: Callable[[str], Page], stack: Stack) -> Page:
    page = sign_in("admin")
    page.goto(f"{stack.url}/services/gpu-reclaim/")
    return page


def shoot_all_ways(page: Page, name: str) -> None:
    """Pictures, light and dark, of a desk and of a narrow window."""
    for width in (1280, 700):
        page.set_viewport_size({"width": width, "height": 800})
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours)
            shoot(page, f"manager-{name}-{width}-{colours}")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


@pytest.mark.long
def test_sessions_are_picked_suspended_and_deleted_by_an_administrator(
    admin: Admin, person: Callable[[str], User], service: Page
) -> None:
    names = [person(end).name for end in ("a", "b")]
    for name in names:
        service.get_by_role("checkbox", name=f"Select {name}, Default server").check()
    service.get_by_text("2 of ").wait_for()
    selected = service.get_by_role("group", name="Selected")
    selected.get_by_role("button", name="Suspend now").click()
    ask = service.get_by_role("dialog", name="Suspend now: 2 sessions?")
    ask.get_by_role("button", name="Suspend now: all 2").click()
    notice = service.locator("#notice")
    notice.get_by_text("2 sessions are being suspended.").wait_for()
    for name in names:
        admin.wait(name, phase="suspended")
    assert service.get_by_role("checkbox", checked=True).count() == 0

    service.get_by_role("link", name="Store", exact=True).first.click()
    row = service.get_by_role("row").filter(has_text=names[0])
    row.get_by_role("button", name="Delete the suspended session").click()
    service.get_by_role("dialog").get_by_role("button", name="Delete for good").click()
    notice.get_by_text("1 checkpoint deleted for good.").wait_for()
    row.wait_for(state="detached")
    assert admin.session(names[1])["phase"] == "suspended"

    base = service.url.partition("/store")[0]
    for name in PAGES:
        service.goto(f"{base}/{name}")
        service.locator("#view[aria-busy]").wait_for(state="detached")
        assert problems(service) == [], name
        shoot_all_ways(service, name)


@pytest.mark.long
def test_silent_agent_is_told_to_managers_and_by_a_resume_that_waits(
    stack: Stack,
    admin: Admin,
    person: Callable[[str], User],
    service: Page,
    sign_in: Callable[[str], Page],
) -> None:
    user = person("a")
    admin.suspend(user.name)
    first = service.get_by_role("region", name="Needs attention")
    page = sign_in(user.name)
    agent = stack.parts["agent"]
    agent.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    try:
        page.goto(f"{stack.url}/user/{user.name}/lab", wait_until="commit")
        page.get_by_text("tell your administrator what this page says").wait_for()
        assert page.get_by_text("Server requested").count() == 0
        first.get_by_text("no answer within 5 s").wait_for()
        waits = "The machine's agent does not answer; waiting"
        page.get_by_text(waits).first.wait_for()
        assert time.monotonic() - begun < TOLD_SECONDS
        shoot(service, "manager-silent")
        shoot(page, "manager-silent-resume")
        first.get_by_role("link", name="This machine").click()
        first.get_by_text("no answer within 5 s").wait_for()
    finally:
        agent.send_signal(signal.SIGCONT)
    first.get_by_text("no answer").wait_for(state="detached")
    admin.wait(user.name, phase="running")


@pytest.mark.long
def test_simulated_gpu_is_called_so_and_its_memory_freed_by_a_suspend(
    stack: Stack, admin: Admin, person: Callable[[str], User], service: Page
) -> None:
    user = person("a")
    take = "from demo.simulated_gpu import GpuMemory; held = GpuMemory(20, gpu=1)"
    with user.server().start_kernel() as kernel:
        kernel.run(take)
        more = kernel.collect(kernel.send("GpuMemory(8, gpu=1)"))
        assert "Simulated GPU 1 has 4 GiB left." in more.error
    wait_until(lambda: admin.session(user.name)["gpus"], 60)  # else in a minute
    service.goto(f"{stack.url}/services/gpu-reclaim/all?by=card")
    card = service.locator(".group-head", has_text="Simulated GPU 00000001")
    card.get_by_text("21 GB of 26 GB held by 1 session").wait_for()
    shoot(service, "all-by-card")
    service.goto(f"{stack.url}/services/gpu-reclaim/nodes")
    card = service.locator("#cards").get_by_role("row").filter(has_text="00000001")
    card.get_by_role("link", name=f"{user.name} Default server").wait_for()
    saved = admin.suspend(user.name)
    assert (saved["gpus"], saved["facts"]["gpus_held"]) == ([], 1)
    user.visit(f"/user/{user.name}/lab")
    while not (gpus := admin.session(user.name)["gpus"]):
        time.sleep(0.1)
    assert [(one["name"], one["memory"]) for one in gpus] == [
        ("Simulated GPU", 20 << 30)
    ]
