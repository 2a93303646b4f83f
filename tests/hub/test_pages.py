"""The Hub's pages in a real browser: a person's visit resumes, nothing else does."""

import pytest

from tests.support import chromium as chromium_program
from tests.support.axe import problems
from tests.support.hub import wait_until
from tests.support.long_stories import but
from tests.support.screenshots import shoot_both

pytestmark = [pytest.mark.browser, chromium_program.NEEDED]
FAILED = {"code": "file_missing", "message": "The file /home/x is gone."}


@pytest.fixture(scope="module")
def chromium():
    with chromium_program.started() as browser:
        yield browser


@pytest.fixture
def tab(chromium, request):
    """A tab in the person's browser, with her cookies."""
    amy = request.getfixturevalue(
        "suspended" if "suspended" in request.fixturenames else "amy"
    )
    context = chromium.new_context(base_url=amy.base)
    context.add_cookies(chromium_program.cookies(amy))
    # of JupyterLab, its page is enough: what it loads takes five seconds of processor
    context.route("**/static/lab/**", lambda route: route.abort())
    yield context.new_page()
    context.close()


def comes_to_lab(tab, seconds=60):
    """Wait until JupyterLab's own page is there; others stand at its address, too."""
    there = tab.locator("#jupyter-config-data")
    there.wait_for(state="attached", timeout=seconds * 1000)
    assert "/hub/" not in tab.url


def test_visit_of_a_suspended_session_brings_it_back(service, suspended, tab):
    tab.goto(f"/user/{suspended.name}/lab/tree/x?reset")
    tab.wait_for_url(f"**/user/{suspended.name}/lab**", timeout=60_000)
    comes_to_lab(tab)
    assert "/tree/x" in tab.url
    assert service.called("plan-start") == 1


def test_frames_fetches_and_prefetches_do_not_wake(service, suspended, tab):
    tab.goto("/hub/token")
    wake = f"/user/{suspended.name}/lab"
    statuses = tab.evaluate(
        """async (wake) => {
            const frame = document.createElement("iframe");
            frame.src = wake;
            document.body.append(frame);
            const link = document.createElement("link");
            Object.assign(link, {rel: "prefetch", href: wake});
            document.head.append(link);
            const page = await fetch(wake);
            const api = await fetch(wake.replace("lab", "api/kernels"));
            await new Promise((done) => setTimeout(done, 2000));
            return [page.status, api.status];
        }""",
        wake,
    )
    assert statuses == [424, 424]
    assert not service.called("plan-start")


@pytest.mark.parametrize(
    "when",
    but(
        ["at once", "while its steps are shown", "told after its stop"],
        "told after its stop",
    ),
)
def test_failed_resume_says_why_and_waits_for_the_person(service, suspended, tab, when):
    service.fail_restore = FAILED
    held = service.folder / f"held-stop-of-{suspended.name}"
    if when == "told after its stop":
        held.touch()
    elif when != "at once":
        service.hold_restore.clear()
    tab.goto(f"/user/{suspended.name}/lab")
    if held.exists():  # the page of a stop, which reloads itself
        refresh = tab.get_by_role("button", name="refresh")
        refresh.wait_for(timeout=60_000)
        held.unlink()
        refresh.click()
    elif when != "at once":
        tab.get_by_text("Reading the memory").first.wait_for(state="attached")
        service.hold_restore.set()
    saved = tab.get_by_role("heading", name="Your session could not be resumed")
    saved.wait_for(timeout=60_000)
    tab.get_by_text(FAILED["message"]).wait_for()
    tab.get_by_role("link", name="Start fresh").wait_for()
    assert tab.locator("#gpu-reclaim-again").count() == 1
    tab.wait_for_timeout(2500)  # longer than any script of ours would wait
    assert service.called("plan-start") == 1

    service.fail_restore = None
    if when == "at once":
        tab.get_by_role("link", name="Try again").click()
    else:
        tab.reload()  # as a person does who means the same
    comes_to_lab(tab)


@pytest.mark.long
def test_failed_resume_is_tried_again_by_itself_and_spares_the_user_our_words(
    service, suspended, tab
):
    words = "The store of checkpoints cannot be used now: connection refused."
    store = {"code": "store_unreachable", "message": words, "retryable": True}
    service.fail_restore = store
    tab.goto(f"/user/{suspended.name}/lab")
    tab.get_by_text("You have done nothing wrong.").wait_for(timeout=60_000)
    assert not tab.get_by_text(words).is_visible()
    tab.get_by_text("Details for your administrator").click()
    tab.get_by_text(words).wait_for()
    shoot_both(tab, "refusal-by-itself")
    tab.emulate_media(color_scheme="dark")
    assert problems(tab) == []
    again = tab.get_by_role("link", name="Try again")
    fresh = tab.get_by_role("link", name="Start fresh")
    assert "btn" in again.get_attribute("class")
    assert not fresh.get_attribute("class")
    service.fail_restore = None
    comes_to_lab(tab)  # nobody presses anything


@pytest.mark.long
def test_restore_is_told_on_a_phone_and_to_a_screen_reader(service, suspended, tab):
    tab.set_viewport_size({"width": 375, "height": 700})
    service.hold_restore.clear()
    tab.goto(f"/user/{suspended.name}/lab")
    step = tab.get_by_role("listitem").filter(has_text="Reading the memory")
    step.get_by_text("0 B of 4.0 GB").wait_for(timeout=30_000)
    tab.get_by_role("status").get_by_text("Reading the memory").wait_for(
        state="attached"
    )
    progress = tab.get_by_role("progressbar", name="Bringing your session back")
    assert 0 < int(progress.get_attribute("aria-valuenow")) < 100
    tab.get_by_text("Still waiting: Reading the memory. If this goes on").wait_for()
    tab.get_by_text("tell your administrator what this page says").wait_for()
    overflow = "document.documentElement.scrollWidth - innerWidth"
    assert tab.evaluate(overflow) <= 0
    shoot_both(tab, "restore-phone")
    tab.emulate_media(color_scheme="dark")
    assert problems(tab) == []
    tab.set_viewport_size({"width": 1100, "height": 600})
    shoot_both(tab, "restore")
    service.hold_restore.set()
    comes_to_lab(tab)


def test_restore_is_told_and_left_where_no_event_comes(service, suspended, tab):
    # and the page's time goes twenty times as fast
    tab.add_init_script(
        "EventSource = class {}; const now = Date.now; Date.now = () => 20 * now()"
    )
    service.hold_restore.clear()
    held = service.folder / f"held-hook-of-{suspended.name}"
    held.touch()
    tab.goto(f"/user/{suspended.name}/lab")
    tab.get_by_role("heading", name="Bringing your session back").wait_for()
    held.unlink()  # only now our spawner is asked
    tab.locator("#gpu-reclaim-steps", has_text="Reading the memory").wait_for()
    service.hold_restore.set()
    tab.wait_for_url(f"**/user/{suspended.name}/lab**", wait_until="commit")


def test_delete_of_a_suspended_server_asks_for_its_session_first(
    hub, service, amy, tab
):
    """The Hub's own question is about a server, and older Hubs ask none."""
    server, other = f"small-lab-of-{amy.name}", f"small-off-of-{amy.name}"
    for each in (server, other):
        amy.start_server(each)
    service.capture(amy.name, server)
    for each in (server, other):
        hub.stop_server(amy.name, each)
    asked = []

    def answer(dialog, *, yes):
        asked.append(dialog.message)
        dialog.accept() if yes else dialog.dismiss()

    tab.goto("/hub/home")
    tab.wait_for_function("window._jupyterhub_page_loaded")
    shoot_both(tab, "home-with-a-suspended-server")
    for yes in (False, True):
        tab.once("dialog", lambda dialog, yes=yes: answer(dialog, yes=yes))
        tab.locator(f"#delete-{server}").click()
        if yes:
            tab.locator(f"#delete-{server}").wait_for(state="detached")
            # The Hub answers before it has told the service.
            wait_until(lambda: service.called("forget"), 30, hub.log)
        assert service.called("forget") == yes
    lost = "Its session is suspended. With the server it is deleted for good."
    assert asked == [f"Delete {server}?\n\n{lost}"] * 2
    tab.once("dialog", lambda dialog: answer(dialog, yes=True))
    tab.locator(f"#delete-{other}").click()
    tab.locator(f"#delete-{other}").wait_for(state="detached")
    assert asked[2] == f'Are you sure you want to delete your server "{other}"?'
