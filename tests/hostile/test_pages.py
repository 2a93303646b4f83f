"""A page on another user's server, with a visitor's login, on a Hub without subdomains.

Everything is real: Hub, proxy, service, Chromium. Eve has put a program of her own in
the place of her single-user server, as anybody can; ada, or an administrator, is logged
in and opens eve's page. That page has the origin of the service.
"""

import json
import sys
import time
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyterhub_gpu_reclaim.common.auth import tab_tokens
from jupyterhub_gpu_reclaim.common.models import SessionKey
from tests.service.test_under_hub import SAVED, Stack
from tests.support import chromium as chromium_program
from tests.support.hub import PASSWORD, wait_until

PREFIX = "/services/gpu-reclaim/"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),
    chromium_program.NEEDED,
]

#: Eve's server: a page with the headers that its query asks for; a service worker that
#: keeps all that it can read; and what was asked of it.
EVE = r'''
import http.server, json, os, urllib.parse
SW = """
const seen = [];
const keep = async (how, asking) => {
  try {
    const answer = await asking();
    seen.push([how, answer?.type, answer && (await answer.clone().text())]);
  } catch (error) { seen.push([how, error.name]); }
};
addEventListener("install", () => skipWaiting());
addEventListener("activate", (e) => e.waitUntil(
  registration.navigationPreload.enable().then(() => clients.claim())));
addEventListener("message", (e) => e.ports[0].postMessage(seen));
addEventListener("fetch", (e) => {
  const { request } = e;
  if (request.url.includes("leave-alone")) return;
  e.respondWith((async () => {
    await keep("preload", () => e.preloadResponse);
    await keep("same request", () => fetch(request));
    for (const mode of ["same-origin", "no-cors", "cors", "navigate"])
      for (const redirect of ["follow", "manual"]) {
        const how = { mode, redirect, credentials: "include" };
        await keep("request " + mode, () => fetch(new Request(request.clone(), how)));
        await keep("address " + mode, () => fetch(request.url, how));
        const to = new URL(request.url).searchParams.get("Location");
        if (to) await keep("target " + mode, () => fetch(to, how));
      }
    return fetch(request);
  })());
});
"""
ASKED = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(query))
        ASKED.append([path, self.headers.get("Sec-Purpose", "")])
        script = path.endswith(".js")
        self.send_response(int(query.pop("status", "200")))
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        for name, value in query.items():
            self.send_header(name, value)
        self.end_headers()
        page = json.dumps(ASKED) if path.endswith("/asked") else "<body>eve"
        self.wfile.write((SW if script else page).encode())
    def log_message(self, *_):
        pass
url = urllib.parse.urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
http.server.ThreadingHTTPServer(("127.0.0.1", url.port), Handler).serve_forever()
'''

#: What the attacks look for: ada's session by name, and the proof of a page.
LOOT = ("ada/train", "data-xsrf", "ckpt-of-ada", "All sessions")


class World(Stack):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SAVED, server=EVE)
        eve = self.hub.user("eve")
        eve.hub("POST", "users/eve/server")
        wait_until(lambda: (self.hub.server("eve") or {}).get("ready"), 60)
        ada = self.hub.user("ada")
        shown = lambda: "ada/train" in ada.http.get(self.service, timeout=30).text  # noqa: E731
        wait_until(shown, 30, self.hub.log)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("hub"))
    try:
        yield world
    finally:
        world.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    async with chromium_program.started_here() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def state_of(world, chromium):
    """The state of a person's browser that is logged in and has used the service."""
    found = {}

    async def logged_in(person):
        async with await chromium.new_context() as context:
            page = await context.new_page()
            page.set_default_timeout(60_000)
            await page.goto(f"{world.hub.url}/hub/login?next=%2Fhub%2Ftoken")
            await page.get_by_label("Username").fill(person)
            await page.get_by_label("Password").fill(PASSWORD)
            await page.get_by_role("button", name="Sign in").click()
            await page.wait_for_url("**/hub/token")
            await page.goto(world.service)
            await page.get_by_text("train").first.wait_for()  # a card, or a row
            return await context.storage_state()

    async def state(person):
        if person not in found:
            found[person] = await logged_in(person)
        return found[person]

    return state


@pytest_asyncio.fixture(
    params=["admin", pytest.param("ada", marks=pytest.mark.long)],  # who sees most
    loop_scope="module",
)
async def victim(chromium, state_of, request):
    state = await state_of(request.param)
    async with await chromium.new_context(storage_state=state) as tabs:
        page = await tabs.new_page()
        page.set_default_timeout(60_000)
        yield page


async def lured(world, page, query: str = "") -> None:
    await page.goto(f"{world.hub.url}/user/eve/page{query}")
    assert await page.evaluate("document.body.innerText") == "eve"


def check_no_loot(got: object) -> None:
    text = json.dumps(got)
    assert not [one for one in LOOT if one in text], text[:2000]


async def test_fetch_of_any_mode_reads_nothing(world, victim):
    await lured(world, victim)
    paths = [
        "", "mine", "all", "nodes", "store", "log", "metrics",
        "sessions/ada/train",
        "api/sessions", "api/sessions/ada/train", "api/sessions/ada/train/history",
        "tab/ada/train",
    ]  # fmt: skip
    got = await victim.evaluate(
        """async ([prefix, paths]) => {
          const read = async (path, how) => {
            const answer = await fetch(prefix + path, how).catch(() => null);
            return answer && await answer.text();
          };
          const got = [];
          for (const path of paths)
            for (const mode of ["no-cors", "same-origin", "cors"])
              for (const redirect of ["follow", "manual"])
                for (const referrer of ["", prefix + "mine", "/user/ada/lab"]) {
                  const how = {mode, redirect, referrer, credentials: "include"};
                  got.push(read(path, how));
                }
          return await Promise.all(got);
        }""",
        [PREFIX, paths],
    )
    assert len(got) == 18 * len(paths)
    check_no_loot(got)


@pytest.mark.parametrize("victim", ["admin"], indirect=True)
async def test_window_that_a_page_opens_cannot_be_looked_into(world, victim):
    await lured(world, victim)
    got = await victim.evaluate(
        """async ([prefix, paths]) => {
          const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));
          const seen = (w) => {
            try { return w.document.documentElement.outerHTML; }
            catch (error) { return error.name; }
          };
          const got = [];
          const look = async (path, way) => {
            const w = open(way === "open" ? prefix + path : "about:blank");
            if (way === "written") {
              w.document.open(); w.document.write("x"); w.document.close();
              w.location = prefix + path;
            }
            for (let n = 0; n < 15; n++) { await pause(100); got.push(seen(w)); }
            w.close();
          };
          const ways = ["open", "written"];
          await Promise.all(paths.flatMap((path) => ways.map((w) => look(path, w))));
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
          const show = async (path, kind) => {
            const one = document.createElement(kind);
            one[kind === "object" ? "data" : "src"] = prefix + path;
            const loaded = new Promise((done) => {
              one.onload = one.onerror = done; setTimeout(done, 1500);
            });
            document.body.append(one);
            await loaded;
            let seen = "";
            try { seen = one.contentDocument?.documentElement.outerHTML ?? ""; }
            catch (error) { seen = error.name; }
            got.push(seen);
            one.remove();
          };
          const kinds = ["iframe", "embed", "object", "frame"];
          await Promise.all(paths.flatMap((path) => kinds.map((k) => show(path, k))));
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
            for (const path of ["mine", "all", "api/sessions"])
              got.push(await (await fetch(prefix + path, {headers})).text());
            const gone = prefix + "api/sessions/ada/train/delete";
            got.push((await fetch(gone, {method: "POST", headers})).status);
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


async def test_login_cookie_that_a_page_has_planted_is_refused(world, victim):
    """Eve's own login, for a longer path of ours: the visitor would act as eve."""
    await lured(world, victim)
    planted = f"service-gpu-reclaim=planted; path={PREFIX}mine"
    await victim.evaluate("(cookie) => { document.cookie = cookie; }", planted)
    answer = await victim.goto(world.service + "mine")
    assert answer.status == 403
    assert "two logins" in await victim.content()


async def test_page_that_is_asked_for_in_advance_cannot_be_read(world, victim):
    """Prefetched, prerendered or preloaded; eve's own page is, by the same words."""
    await lured(world, victim)
    got = await victim.evaluate(
        """async ([prefix, paths]) => {
          const add = (name, how) =>
            document.head.append(Object.assign(document.createElement(name), how));
          const own = "/user/eve/control-";
          for (const path of [...paths.map((path) => prefix + path), own + "link"]) {
            add("link", { rel: "prefetch", href: path });
            add("link", { rel: "prefetch", as: "document", href: path });
            add("link", { rel: "preload", as: "fetch", crossOrigin: "", href: path });
            add("link", { rel: "modulepreload", href: path });
          }
          for (const way of ["prefetch", "prerender"]) {
            const urls = [...paths.map((path) => prefix + path), own + way];
            const rules = { [way]: [{ urls, eagerness: "immediate" }] };
            const textContent = JSON.stringify(rules);
            add("script", { type: "speculationrules", textContent });
          }
          const asked = async () =>
            (await (await fetch("/user/eve/asked", { cache: "no-store" })).json())
              .map(([path]) => path);
          for (let n = 0; n < 100; n++) {
            const paths = await asked();
            if (["link", "prefetch"].every((way) => paths.includes(own + way))) break;
            if (n === 99) throw Error("nothing was asked for in advance: " + paths);
            await new Promise((wake) => setTimeout(wake, 100));
          }
          await new Promise((wake) => setTimeout(wake, 1000));
          const got = [];
          for (const path of paths)
            for (const cache of ["force-cache", "only-if-cached", "default"]) {
              const how = { cache, mode: "same-origin" };
              const answer = await fetch(prefix + path, how).catch(() => null);
              got.push(answer && (await answer.text()));
            }
          for (const name of await caches.keys()) got.push(name);
          const entries = performance.getEntries().map((entry) => entry.toJSON());
          return [...got, JSON.stringify(entries).replaceAll("ada/train", "")];
        }""",
        [PREFIX, ["mine", "all", "sessions/ada/train", "api/sessions"]],
    )
    check_no_loot(got)


#: Has eve's service worker installed, and asks it what it has seen.
WORKER = """
const installed = async (script, scope) => {
  const options = scope ? { scope } : {};
  const made = await navigator.serviceWorker.register(script, options);
  while (!made.active) await new Promise((wake) => setTimeout(wake, 50));
  return made;
};
const seenBy = (made) => new Promise((done) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = ({ data }) => done(data);
  made.active.postMessage("what?", [port2]);
});
"""


async def test_service_worker_of_a_page_reads_nothing_on_any_way(world, victim):
    """Also by what its own server sends on to us, and by the browser's preload."""
    await lured(world, victim, "?leave-alone=1")
    got = await victim.evaluate(
        WORKER
        + """
        (async ([prefix, paths]) => {
          const made = await installed("/user/eve/sw.js?leave-alone=1");
          const got = [];
          const attack = async (path) => {
            const direct = await fetch(prefix + path).catch(() => null);
            got.push(direct && (await direct.text()));
            const query = new URLSearchParams({ status: 302, Location: prefix + path });
            const hop = "/user/eve/hop?" + query;
            const sent = await fetch(hop).catch(() => null);
            got.push(sent && (await sent.text()));
            const frame = document.createElement("iframe");
            const loaded = new Promise((done) => {
              frame.onload = done; setTimeout(done, 5000);
            });
            frame.src = hop;
            document.body.append(frame);
            await loaded;
            const w = open(hop);
            await new Promise((wake) => setTimeout(wake, 2000));
            for (const one of [() => frame.contentDocument, () => w.document])
              try { got.push(one()?.documentElement.outerHTML); }
              catch (error) { got.push(error.name); }
            w.close();
            frame.remove();
          };
          await Promise.all(paths.map(attack));
          return [...got, ...(await seenBy(made))];
        })""",
        [PREFIX, ["mine", "api/sessions"]],
    )
    kinds = {one[0] for one in got if isinstance(one, list)}
    assert {"preload", "same request", "target same-origin"} <= kinds
    check_no_loot(got)


async def test_service_worker_of_the_whole_host_gets_no_page_for_its_preload(
    world, victim
):
    """Eve's server may allow it, over HTTPS and here; then it hears of each visit.

    It has other ways (a race of network and worker, in Chromium), which nothing on our
    side can tell from a visit: the text says so.
    """
    await lured(world, victim, "?leave-alone=1")
    script = "/user/eve/sw.js?leave-alone=1&Service-Worker-Allowed=/"
    scope = await victim.evaluate(
        WORKER + "async (script) => (await installed(script, '/')).scope", script
    )
    assert scope == world.hub.url + "/"
    tab = await victim.context.new_page()
    for path in ("mine", "all", "sessions/ada/train"):
        await tab.goto(world.service + path)
    await lured(world, tab, "?leave-alone=1")
    got = await tab.evaluate(
        WORKER
        + "async () => seenBy(await navigator.serviceWorker.getRegistration('/'))"
    )
    assert {"preload", "same request"} <= {one[0] for one in got}
    check_no_loot(got)


async def test_pass_of_eves_own_tab_and_a_forged_referer_show_nothing_of_adas(
    world, victim
):
    secret = (world.hub.folder / "state" / "spawner.token").read_text().strip()
    now = time.time()
    key = tab_tokens.session_key(secret.encode(), SessionKey("eve"), "5e55", now)
    own = tab_tokens.made({tab_tokens.VARIABLE: key}, now + 5)
    await lured(world, victim)
    got = await victim.evaluate(
        """async ([prefix, header, passes]) => {
          const got = [];
          for (const here of ["/user/ada/train/lab", prefix + "mine", "/hub/home"]) {
            history.pushState(null, "", here);
            for (const pass of passes)
              for (const [method, path] of [
                ["GET", ""], ["GET", "/why"], ["POST", "/suspend"], ["POST", "/resume"],
                ["POST", "/delete"],
              ]) {
                const url = prefix + "api/sessions/ada/train" + path;
                const how = { method, headers: { [header]: pass } };
                const answer = await fetch(url, how);
                got.push([answer.status, await answer.text()]);
              }
          }
          return got;
        }""",
        [PREFIX, tab_tokens.HEADER, [own, own.replace("eve/", "ada/train"), ""]],
    )
    assert {status for status, _ in got} <= {401, 403, 404}
    texts = [text.replace("ada/train", "") for _, text in got]  # as eve has asked
    check_no_loot(texts)
    assert world.agent.saved
