"""The pages, as a browser without JavaScript uses them, and their safety."""

import json
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.common.models import Failure, KeptState, Phase, SessionKey
from jupyterhub_gpu_reclaim.common.orders import KINDS

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.forms import Browser, Tags

ADA = SessionKey("ada")


@pytest.fixture
def browser(service):
    return Browser(service, "token-ada")


async def test_visit_without_a_login_leads_to_the_hub(service):
    response = await Browser(service, "").get()
    assert response.code == 302
    assert "/oauth2/authorize" in response.headers["Location"]


async def test_visit_without_access_is_a_page_that_says_so(service):
    response = await Browser(service, "token-stranger").get()
    assert response.code == 403
    assert "You may not do that." in response.body.decode()


async def test_page_shows_ones_own_sessions_only(service, browser):
    service.control.put("ada", "train")
    service.control.put("bob", "secret-project")
    page = await browser.text()
    assert "train" in page
    assert "secret-project" not in page
    assert "All sessions" not in page


async def test_page_of_a_manager_leads_to_all_sessions(service):
    service.control.put("bob", "secret-project")
    root = Browser(service, "token-root")
    response = await root.get()
    assert (response.code, response.headers["Location"]) == (
        302,
        "/services/gpu-reclaim/all",
    )
    assert "secret-project" not in await root.text("mine")


async def test_announcement_of_the_hub_is_on_every_page(service, browser):
    said = "Down on <b>Monday</b>"
    context = replace(service.context, announcement=said)
    service.app.settings["context"] = context
    for path in ("", "nothing/here"):
        assert said in (await browser.get(path)).body.decode()


async def test_page_without_a_session_says_what_to_do(browser):
    page = await browser.text()
    assert "You have no sessions." in page


@pytest.mark.parametrize(
    ("phase", "action", "fields", "called"),
    [
        (Phase.RUNNING, "suspend", {}, ("suspend", ADA, "ada")),
        (Phase.SUSPENDED, "resume", {}, ("resume", ADA, "ada")),
        (Phase.RUNNING, "keep", {"seconds": "3600"}, ("keep", ADA, 3600.0, "ada")),
        (Phase.SUSPENDED, "delete", {}, ("discard", ADA, "ada", "")),
        (
            Phase.SUSPENDED,
            "delete",
            {"checkpoint": "c9"},
            ("discard", ADA, "ada", "c9"),
        ),
    ],
)
async def test_button_does_it_and_leads_back(
    service, browser, phase, action, fields, called
):
    service.control.put("ada", phase=phase)
    response = await browser.press(action, **fields)
    assert response.code == 303
    assert response.headers["Location"] == f"/services/gpu-reclaim/mine?done={action}"
    assert service.control.calls == [called]


@pytest.mark.parametrize("xsrf", ["", "wrong"])
async def test_button_without_the_pages_token_does_nothing(service, browser, xsrf):
    service.control.put("ada")
    await browser.get()
    response = await browser.post("sessions/ada/-/suspend", _xsrf=xsrf)
    assert response.code == 401
    assert service.control.calls == []


async def test_api_with_a_cookie_needs_the_pages_token_too(service, browser):
    service.control.put("ada")
    await browser.get()
    response = await browser.post("api/sessions/ada/-/suspend")
    assert response.code == 401
    assert service.control.calls == []


async def test_button_that_is_refused_gives_a_page_with_the_reason(service, browser):
    service.control.put("ada", phase=Phase.RESUMING)
    response = await browser.press("suspend")
    assert response.code == 409
    assert "cannot be suspended" in response.body.decode()


@pytest.mark.parametrize("seconds", ["", "x", "nan", "inf", "-1", "1e99"])
async def test_keep_for_no_sensible_time_is_a_bad_request(service, browser, seconds):
    service.control.put("ada")
    response = await browser.press("keep", seconds=seconds)
    assert response.code == 400
    assert service.control.calls == []


@pytest.mark.parametrize(
    ("failure", "says", "not_says", "order", "called"),
    [
        ("file_missing", "is put aside with", None, "start-fresh", "start_fresh"),
        ("saved_found", "sessions/ada/-/resume", "Try again", "resume", "resume"),
        (
            "files_newer",
            "sessions/ada/-/put-files-back",
            None,
            "put-files-back",
            "put_files_back",
        ),
        (
            "renamed",
            "stays as it is, under its former name",
            "kept for",
            "start-fresh",
            "start_fresh",
        ),
    ],
)
async def test_page_of_what_did_not_come_back_has_the_choices_that_its_user_has(
    service, browser, failure, says, not_says, order, called
):
    renamed = failure == "renamed"
    service.control.put(
        "ada",
        phase=Phase.STOPPED if renamed else Phase.SUSPENDED,
        checkpoint="" if renamed else "c1",
        failure=Failure(code=failure, message="It is as it is."),
    )
    page = await browser.text("sessions/ada/-")
    assert "It is as it is." in page
    assert says in page
    assert not_says is None or not_says not in page
    assert service.control.calls == []
    response = await browser.press(order, page="start")
    assert response.code == 303, response.body
    assert response.headers["Location"] == "/hub/spawn/ada"
    assert service.control.calls == [(called, ADA, "ada")]


async def test_page_lists_other_states_and_brings_one_back(service, browser):
    kept = [
        KeptState(id="c2", generation=2, created=1.7e9, keeping="current"),
        KeptState(id="c1", generation=1, created=1.6e9, keeping="aside"),
    ]
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c2", kept=kept)
    page = await browser.text("sessions/ada/-")
    assert "Checkpoint of 2020-09-13 12:26 UTC" in page
    assert page.count("Checkpoint of ") == 1  # what it is in is no other state
    response = await browser.press("bring-back", checkpoint="c1", page="start")
    assert response.code == 303
    assert response.headers["Location"].endswith("spawn/ada")
    assert service.control.calls == [("bring_back", ADA, "c1", "ada", False)]
    service.control.put("ada", phase=Phase.RUNNING)
    page = await browser.text("sessions/ada/-")
    assert "is saved first" in page


async def test_names_and_reasons_are_escaped(service):
    evil = '"><script>alert(1)</script>'
    failure = Failure(code="x", message=evil, hint=evil)
    view = service.control.put(evil, evil, failure=failure)
    root = Browser(service, "token-root")
    page = await root.text(f"sessions/{view.key.path}")
    sources = [one.get("src") for one in Tags(page).all("script")]
    scripts = ["times.js", "own.js"]
    assert sources == [f"/services/gpu-reclaim/static/{one}" for one in scripts]
    assert "alert(1)</script>" not in page


async def test_pages_have_no_inline_script_and_forbid_it(service, browser):
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c1")
    response = await browser.get()
    policy = response.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    for tag, attrs in Tags(response.body.decode()).seen:
        assert not [name for name in attrs if name.startswith("on")], tag
        assert "style" not in attrs
        assert tag != "script" or attrs.get("src")


async def test_every_form_carries_the_token_and_every_button_a_name(service, browser):
    service.control.put("ada", phase=Phase.SUSPENDED, checkpoint="c1")
    service.control.put("ada", "two")
    page = await browser.text()
    tags = Tags(page)
    forms = tags.all("form")
    tokens = [one for one in tags.all("input") if one.get("name") == "_xsrf"]
    assert len(forms) == len(tokens) > 3
    assert all(one["method"] == "post" for one in forms)


async def test_static_files_are_served_without_a_login(service):
    for name in ("service.css", "manager.css", "live.js", "times.js", "own.js"):
        response = await service.call(f"static/{name}", "")
        assert response.code == 200
        assert response.headers["Cache-Control"] == "no-cache"


async def test_scripts_are_sent_the_registry_of_orders(service):
    sent = (await service.call("static/orders.js", "")).body.decode()
    table = json.loads(sent.removeprefix("export const ORDERS = ").removesuffix(";\n"))
    assert list(table) == list(KINDS)
    assert table["keep"]["body"] == {"seconds": 3600.0}
    assert table["resume"]["phases"] == ["suspended"]
    assert table["put-files-back"]["cures"] == ["files_newer"]


@pytest.mark.parametrize("kind", KINDS)
async def test_form_of_each_kind_is_answered_with_its_sentence(service, kind):
    phase = next(iter(KINDS[kind].phases))
    service.control.put("ada", phase=phase)
    root = Browser(service, "token-root")
    fields = {"seconds": "60", "out": "1", "checkpoint": "c1", "incarnation": "i2"}
    fields |= {"save_running": "1", "everything": "0", "name": "mine"}
    mine = {name: fields[name] for name in KINDS[kind].__struct_fields__}
    answer = await root.press(kind, accept="application/json", **mine)
    assert (answer.code, json.loads(answer.body)) == (200, KINDS[kind].done)


async def test_address_without_a_page_is_a_page_that_says_so(browser):
    response = await browser.get("nothing/here")
    assert response.code == 404
    assert "There is nothing at this address." in response.body.decode()


async def test_login_answer_with_an_error_is_a_page_without_a_traceback(browser):
    response = await browser.get("oauth_callback?error=access_denied")
    assert response.code == 400
    assert "Traceback" not in response.body.decode()


REVOKED = Failure(code="token_revoked", message="It was revoked.")
ALONE = Failure(code="not_adopted", message="A session of ada is running already.")
SECOND = Failure(code="second_tree", message="Programs (i2) run.", incarnation="i2")


@pytest.mark.parametrize("page", ["sessions/ada/-"])
@pytest.mark.parametrize(
    ("phase", "failure", "action", "fields", "called"),
    [
        (Phase.SUSPENDED, REVOKED, "renew-login", {}, ("renew_login", ADA, "root")),
        (Phase.RUNNING, ALONE, "renew-login", {}, ("renew_login", ADA, "root")),
        (
            Phase.RUNNING,
            SECOND,
            "end-tree",
            {"incarnation": "i2"},
            ("end_tree", ADA, "i2", "root"),
        ),
    ],
)
async def test_button_of_a_report_is_for_who_manages(
    service, browser, page, phase, failure, action, fields, called
):
    service.control.put("ada", phase=phase, failure=failure)
    root = Browser(service, "token-root")
    shown = Tags(await root.text(page))
    address = f"/services/gpu-reclaim/sessions/ada/-/{action}"
    assert address in {form["action"] for form in shown.all("form")}
    inputs = {field.get("name"): field.get("value") for field in shown.all("input")}
    assert fields.items() <= inputs.items()
    own = await browser.text("sessions/ada/-")
    assert action not in own
    service.control.calls.clear()
    refused = await browser.press(action, **fields)
    assert refused.code == 403
    assert service.control.calls == []
    done = await root.press(action, page="one", **fields)
    assert done.code == 303
    assert service.control.calls == [called]
    back = await root.text(f"sessions/ada/-?done={action}")
    assert KINDS[action].done in unescape(back)


async def test_page_of_a_session_revokes_the_key_of_its_tabs(service, browser):
    service.control.put("ada")
    path = "sessions/ada/-/revoke-tabs"
    shown = Tags(await browser.text("sessions/ada/-"))
    assert f"/services/gpu-reclaim/{path}" in {f["action"] for f in shown.all("form")}
    done = await browser.press("revoke-tabs", page="one")
    assert done.code == 303
    assert ("revoke_tabs", ADA, "ada") in service.control.calls
    back = await browser.text("sessions/ada/-?done=revoke-tabs")
    assert KINDS["revoke-tabs"].done in unescape(back)


async def test_save_point_is_named_on_the_sessions_page(service):
    service.control.put("ada")
    ada = Browser(service, "token-ada")
    page = await ada.text("sessions/ada/-")
    assert "Save point with a name" in page
    await ada.press("save", name="mine", page="one")
    assert ("save", SessionKey("ada"), "ada", "mine") in service.control.calls
