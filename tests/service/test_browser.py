"""The sessions page in a real browser: live, within its policy, small and dark too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tornado.web import create_signed_value

from jupyterhub_gpu_reclaim.errors import Refused
from jupyterhub_gpu_reclaim.models import Failure, Phase, SessionKey, Step, Verdict
from jupyterhub_gpu_reclaim.reasons import Reason

from playwright.async_api import async_playwright, expect  # isort: skip

CHROMIUM = "/usr/bin/chromium"
SHOTS = os.environ.get("GPU_RECLAIM_TEST_SHOTS", "")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"needs {CHROMIUM}"),
]


@pytest.fixture
async def tab(service):
    """Opens a tab of somebody who is logged in; fails on any script or policy error."""
    problems: list[str] = []
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )

        async def opened(token: str = "token-root", path: str = "", **options: object):
            context = await chromium.new_context(**options)
            context.set_default_timeout(15_000)
            signed = create_signed_value(
                service.app.settings["cookie_secret"], "service-gpu-reclaim", token
            ).decode()
            await context.add_cookies(
                [{"name": "service-gpu-reclaim", "value": signed, "url": service.url}]
            )
            page = await context.new_page()
            # the Hub's logo is not here: only the service runs
            await page.route("**/hub/logo", lambda route: route.fulfill(status=204))
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
        await chromium.close()
    assert problems == []


async def shot(page, name: str) -> None:
    """A picture for whoever asked for pictures."""
    if SHOTS:
        await page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def fill(service) -> None:
    """One session in each state that looks different."""
    saved = [Step(step="dump", title="Saving the memory", state="done", seconds=3.4)]
    verdict = Verdict(
        reclaim=False, code="kernel_busy", message="Kernel train.ipynb is busy."
    )
    service.control.put("root", verdict=verdict)
    service.control.put(
        "root",
        "training",
        phase=Phase.SUSPENDING,
        steps=[
            *saved,
            Step(step="write", title="Writing it to the store", bytes=7 * 10**8),
        ],
    )
    failure = Failure(
        code="port_in_use", message="Port 5000 is taken by nginx.", hint="End it."
    )
    service.control.put(
        "ada", "notes", phase=Phase.SUSPENDED, checkpoint="c1", failure=failure
    )
    service.control.put("bob", phase=Phase.RESUMING, steps=saved)


async def test_page_follows_changes_without_a_reload(service, tab):
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


async def test_open_confirmation_stays_open_while_the_card_changes(service, tab):
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c1")
    page = await tab("token-ada")
    await page.get_by_text("Delete saved session…").click()
    button = page.get_by_role("button", name="Delete for good")
    await button.focus()
    service.control.put("ada", failure=Failure(code="x", message="A new sentence."))
    await expect(page.get_by_text("A new sentence.")).to_be_visible()
    await expect(button).to_be_focused()
    await button.click()
    await expect(page.get_by_role("status")).to_have_text(
        "The saved session is deleted."
    )
    assert service.control.calls[-1][0] == "discard"


async def test_buttons_work_without_scripts(service, tab):
    service.control.put("ada")
    page = await tab("token-ada", java_script_enabled=False)
    await page.get_by_role("button", name="Suspend now").click()
    await page.wait_for_url("**/mine?done=suspend")
    assert "Being saved" in await page.content()


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
    await page.get_by_label("Look for").fill("n1")
    await expect(page.locator("tr[data-session]")).to_have_count(1)
    assert page.url.endswith("/all?text=n1&sort=session")

    # the rest by keyboard alone
    await bob.get_by_text("More", exact=True).focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(bob.get_by_text("Keep running for 1 h")).to_be_focused()
    service.control.put("bob", facts={"node": "n1", "opted_out_by": "root"})
    await expect(bob).to_contain_text("root has said so")
    await expect(bob.get_by_text("Keep running for 1 h")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#notice")).to_have_text("Noted.")
    await expect(bob.get_by_text("More", exact=True)).to_be_focused()
    assert service.control.calls[-1] == ("keep", SessionKey("bob"), 3600.0, "root")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await expect(bob.get_by_text("Keep running for 1 h")).to_be_hidden()

    await bob.get_by_role("button", name="Suspend now").click()
    await expect(bob).to_contain_text("Being saved")
    assert await page.evaluate("window.notReloaded")


async def test_refusal_is_told_beside_the_rows(service, tab):
    async def refuse(key: SessionKey, by: str) -> None:
        raise Refused(Reason.WRONG_PHASE, phase="resuming", action="be suspended")

    service.control.put("bob")
    service.control.suspend = refuse  # another page was quicker
    page = await tab(path="all")
    button = page.get_by_role("button", name="Suspend now")
    async with page.expect_response("**/suspend") as answer:
        await button.click()
    assert (await answer.value).status == 409
    await expect(page.locator("#notice")).to_contain_text("cannot be suspended")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_page_fits_a_phone_and_a_desk(service, tab, scheme):
    fill(service)
    for name, width in (("phone", 360), ("desk", 1100)):
        page = await tab(viewport={"width": width, "height": 800}, color_scheme=scheme)
        await expect(page.locator("[data-session]")).to_have_count(4)
        overflow = "document.documentElement.scrollWidth - innerWidth"
        assert await page.evaluate(overflow) <= 0
        await shot(page, f"sessions-{name}-{scheme}")
    page = await tab(path="sessions/ada/notes/fresh", color_scheme=scheme)
    await expect(page.get_by_role("button", name="Start fresh")).to_be_visible()
    await shot(page, f"fresh-{scheme}")
