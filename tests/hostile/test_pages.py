"""A page on another user's server, with a visitor's login, on a Hub without subdomains.

Everything is real: Hub, proxy, service, Chromium. Eve has put a program of her own in
the place of her single-user server, as anybody can; ada, or an administrator, is logged
in and opens eve's page. That page has the origin of the service.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.async_api import async_playwright

from tests.service.test_under_hub import CONFIG, AgentWithOneSavedSession
from tests.support.hub import PASSWORD, HubUnderTest, free_port, wait_until

CHROMIUM = "/usr/bin/chromium"
PREFIX = "/services/gpu-reclaim/"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"needs {CHROMIUM}"),
]

#: Eve's server: a page with the headers that its query asks for; a service worker.
EVE = r'''
import http.server, os, urllib.parse
SW = """
addEventListener("activate", (e) => e.waitUntil(clients.claim()));
addEventListener("fetch", () => {});
"""
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        script = path.endswith(".js")
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        for name, value in urllib.parse.parse_qsl(query):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write((SW if script else "<body>eve").encode())
    def log_message(self, *_):
        pass
url = urllib.parse.urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
http.server.ThreadingHTTPServer(("127.0.0.1", url.port), Handler).serve_forever()
'''

#: What the attacks look for: ada's session by name, and the proof of a page.
LOOT = ("ada/train", "data-xsrf", "ckpt-of-ada", "All sessions")


class World:
    """The Hub, and an agent with a saved session of ada's."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentWithOneSavedSession()
        (folder / "agent.token").write_text("token-of-the-agent")
        config = CONFIG.format(
            agent=self.agent.server_port,
            folder=folder,
            service=free_port(),
            server=EVE,
        )
        self.hub = HubUnderTest(folder, config)
        self.hub.start()
        eve = self.hub.user("eve")
        eve.hub("POST", "users/eve/server")
        wait_until(lambda: (self.hub.server("eve") or {}).get("ready"), 60)
        ada = self.hub.user("ada")
        shown = lambda: "ada/train" in ada.http.get(self.service, timeout=30).text  # noqa: E731
        wait_until(shown, 30, self.hub.log)

    @property
    def service(self) -> str:
        return self.hub.url + PREFIX

    def close(self) -> None:
        self.hub.close()
        self.agent.shutdown()
        self.agent.server_close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("hub"))
    try:
        yield world
    finally:
        world.close()


@pytest.fixture(params=["ada", "admin"])
async def victim(world, request):
    """A tab of somebody who is logged in to the Hub and has used the service."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        page = await (await chromium.new_context()).new_page()
        page.set_default_timeout(60_000)
        await page.goto(f"{world.hub.url}/hub/login?next=%2Fhub%2Ftoken")
        await page.get_by_label("Username").fill(request.param)
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url("**/hub/token")
        await page.goto(world.service)
        await page.locator("[data-session='ada/train']").wait_for()
        yield page
        await chromium.close()


async def lured(world, page, query: str = "") -> None:
    """The victim opens eve's page."""
    await page.goto(f"{world.hub.url}/user/eve/page{query}")
    assert await page.evaluate("document.body.innerText") == "eve"


def check_no_loot(got: object) -> None:
    text = json.dumps(got)
    assert not [one for one in LOOT if one in text], text[:2000]


async def test_fetch_of_any_mode_reads_nothing(world, victim):
    await lured(world, victim)
    paths = [
        "", "mine", "all", "all/table", "all/summary", "store", "log", "metrics",
        "sessions/ada/train", "sessions/ada/train/card", "sessions/ada/train/fresh",
        "api/sessions", "api/sessions/ada/train", "api/users/ada/history", "api/totals",
        "tab/ada/train",
    ]  # fmt: skip
    got = await victim.evaluate(
        """async ([prefix, paths]) => {
          const got = [];
          for (const path of paths)
            for (const mode of ["no-cors", "same-origin", "cors"])
              for (const redirect of ["follow", "manual"])
                for (const referrer of ["", prefix + "mine", "/user/ada/lab"]) {
                  const how = {mode, redirect, referrer, credentials: "include"};
                  const answer = await fetch(prefix + path, how).catch(() => null);
                  got.push(answer && await answer.text());
                }
          return got;
        }""",
        [PREFIX, paths],
    )
    assert len(got) == 18 * len(paths)
    check_no_loot(got)


@pytest.mark.parametrize(
    "policy", ["", "same-origin", "same-origin-allow-popups", "noopener-allow-popups"]
)
async def test_window_that_a_page_opens_cannot_be_looked_into(world, victim, policy):
    """Also where the opener has the same opener policy, which would let it."""
    await lured(
        world, victim, f"?Cross-Origin-Opener-Policy={policy}" if policy else ""
    )
    got = await victim.evaluate(
        """async ([prefix, paths]) => {
          const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));
          const seen = (w) => {
            try { return w.document.documentElement.outerHTML; }
            catch (error) { return error.name; }
          };
          const got = [];
          for (const path of paths)
            for (const way of ["open", "written"]) {
              const w = open(way === "open" ? prefix + path : "about:blank");
              if (way === "written") {
                w.document.open(); w.document.write("x"); w.document.close();
                w.location = prefix + path;
              }
              for (let n = 0; n < 10; n++) { await pause(100); got.push(seen(w)); }
              w.close();
            }
          return got;
        }""",
        [PREFIX, ["mine", "all", "api/sessions", "sessions/ada/train"]],
    )
    check_no_loot(got)


async def test_frames_and_objects_show_nothing(world, victim):
    await lured(world, victim)
    got = await victim.evaluate(
        """async ([prefix, paths]) => {
          const got = [];
          history.pushState(null, "", "/user/ada/lab");  // another page's Referer
          for (const path of paths)
            for (const kind of ["iframe", "embed", "object", "frame"]) {
              const one = document.createElement(kind);
              one[kind === "object" ? "data" : "src"] = prefix + path;
              const loaded = new Promise((done) => {
                one.onload = one.onerror = done; setTimeout(done, 700);
              });
              document.body.append(one);
              await loaded;
              let seen = "";
              try { seen = one.contentDocument?.documentElement.outerHTML ?? ""; }
              catch (error) { seen = error.name; }
              got.push(seen);
              one.remove();
            }
          return got;
        }""",
        [PREFIX, ["mine", "all", "tab/ada/train", "static/live.js"]],
    )
    check_no_loot(got)


async def test_what_cookies_say_opens_nothing(world, victim):
    """Paths protect no cookie: the Hub's XSRF cookie for our path, once it is got."""
    cookies = await victim.context.cookies(world.service)
    xsrf = [one["value"] for one in cookies if one["name"] == "_xsrf"]
    assert xsrf, "the Hub's login has set it"
    await lured(world, victim)
    got = await victim.evaluate(
        """async ([prefix, xsrf]) => {
          const got = [];
          for (const token of xsrf) {
            const headers = {"X-XSRFToken": token};
            for (const path of ["mine", "all", "api/sessions", "all/table"])
              got.push(await (await fetch(prefix + path, {headers})).text());
            const saved = prefix + "api/sessions/ada/train/saved";
            got.push((await fetch(saved, {method: "DELETE", headers})).status);
            const body = new URLSearchParams({_xsrf: token});
            const button = prefix + "sessions/ada/train/delete";
            got.push((await fetch(button, {method: "POST", body})).status);
          }
          return got;
        }""",
        [PREFIX, xsrf],
    )
    check_no_loot(got)
    assert [one for one in got if isinstance(one, int)] == [401, 401] * len(xsrf)
    assert world.agent.saved


async def test_form_that_a_page_sends_changes_nothing(world, victim):
    await lured(world, victim)
    async with victim.expect_navigation():
        await victim.evaluate(
            """(action) => {
              const form = document.createElement("form");
              Object.assign(form, {method: "post", action});
              document.body.append(form);
              form.submit();
            }""",
            PREFIX + "sessions/ada/train/delete",
        )
    assert "Log in first" in await victim.content()
    assert world.agent.saved


async def test_streams_and_sockets_tell_nothing(world, victim):
    await lured(world, victim)
    got = await victim.evaluate(
        """async (prefix) => {
          const got = [];
          const events = new EventSource(prefix + "api/events");
          for (const name of ["present", "session"])
            events.addEventListener(name, (event) => got.push(event.data));
          const ended = new Promise((done) => { events.onerror = done; });
          const ws = new WebSocket(location.origin.replace("http", "ws") + prefix);
          ws.onmessage = (event) => got.push(event.data);
          const shut = new Promise((done) => { ws.onclose = done; });
          await Promise.all([ended, shut]);
          events.close();
          return got;
        }""",
        PREFIX,
    )
    assert got == []


async def test_login_cookie_that_a_page_has_planted_is_refused(world, victim):
    """Eve's own login, for a longer path of ours: the visitor would act as eve."""
    await lured(world, victim)
    planted = f"service-gpu-reclaim=planted; path={PREFIX}mine"
    await victim.evaluate("(cookie) => { document.cookie = cookie; }", planted)
    answer = await victim.goto(world.service + "mine")
    assert answer.status == 403
    assert "two logins" in await victim.content()


async def test_page_works_by_itself_in_its_sandbox(world, victim):
    """What the others may not do, the service's own page does: forms and scripts."""
    await victim.goto(world.service + "sessions/ada/train")
    assert await victim.evaluate("origin") == "null"
    await victim.evaluate("window.notReloaded = true")
    await victim.get_by_role("button", name="Bring back").first.click()
    await victim.locator("#notice", has_text="is coming back").wait_for()
    assert await victim.evaluate("window.notReloaded")
