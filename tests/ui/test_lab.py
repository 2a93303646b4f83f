"""The modules of an open tab, as far as they need no page: syntax, words, numbers."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jupyterhub_gpu_reclaim.service.web import pages
from tests.support.ran import ran

STATIC = (
    Path(__file__).parents[2]
    / "jupyterhub_gpu_reclaim"
    / "lab"
    / "labextension"
    / "static"
)
SESSION = STATIC.parents[2] / "service" / "web" / "static" / "session.js"
WORDS = STATIC / "view" / "words.js"
PANEL = STATIC / "view" / "panel.js"
ITEM = STATIC / "view" / "item.js"
ABSENCE = STATIC / "view" / "absence.js"
UPDATES = STATIC / "updates.js"
SERVICE = STATIC / "service.js"
MODULES = sorted(STATIC.rglob("*.js"))


def node(code: str, *arguments: str) -> str:
    command = ["node", "--input-type=module", *arguments, "-"]
    answer = ran(command, input=code, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_modules_have_no_syntax_errors():
    code = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ SourceTextModule }} from "node:vm";
        const found = {{}};
        for (const file of {json.dumps(list(map(str, MODULES)))})
          try {{
            new SourceTextModule(readFileSync(file, "utf8"));
          }} catch (error) {{
            found[file] = error.stack;
          }}
        console.log(JSON.stringify(found));
    """
    assert json.loads(node(code, "--experimental-vm-modules", "--no-warnings")) == {}


@pytest.fixture(scope="module")
def words():
    """Calls functions of words.js: (name, arguments…) for each; all at once."""

    def call(*calls: tuple[object, ...]) -> list[object]:
        code = f"""
            import * as words from {json.dumps(WORDS.as_uri())};
            const calls = {json.dumps(calls)};
            const answers = calls.map(([name, ...rest]) => words[name](...rest));
            console.log(JSON.stringify(answers));
        """
        return json.loads(node(code))

    return call


CARD = {"uuid": "g", "name": "H200", "memory": 12_300_000_000, "sm_percent": 41.6}
NOW = 10_000.0


def view(**changes: object) -> dict[str, object]:
    return {"phase": "running", "usage": {"last_active": NOW - 5}, **changes}


def test_line_in_the_corner_says_what_is_known_and_no_more(words):
    idle = {"last_active": NOW - 300}
    second = {**CARD, "memory": None, "sm_percent": None}
    rests = {**CARD, "sm_percent": 3.0}
    cases = {
        "Session in use": view(),
        "GPU 12 GB, 42 %": view(gpus=[CARD, second], usage=idle),
        "GPU 12 GB, 3 % · idle 5 min": view(gpus=[rests], usage=idle),
        "GPU 0 B": view(gpus=[second]),
        "Idle 5 min · suspends in 10 min": view(usage=idle, verdict={"at": NOW + 600}),
        "Idle 5 min": view(usage=idle, verdict={"at": None}),
        "Suspends in 20 s": view(phase="warned", suspends_at=NOW + 20),
        "Suspending session": view(phase="suspending"),
    }
    told = words(*[("inOneLine", one, NOW) for one in cases.values()])
    assert told == list(cases)


def test_session_at_work_says_what_works(words):
    busy = {"last_active": NOW - 300, "busy_kernel": "a"}
    assert words(
        ("workOf", view(gpus=[CARD], usage=busy)),
        ("workOf", view(gpus=[CARD])),
        ("workOf", view(usage={"gpu_percent": 90})),
        ("workOf", view(gpus=[{**CARD, "sm_percent": 3.0}])),
        ("idleFor", view(usage=busy), NOW),
        ("inFull", view(usage=busy), NOW),
    ) == [
        *("Kernel a is busy.", "Its GPU is busy.", "Its GPU is busy.", ""),
        None,
        [["Last used", "5 min ago"]],
    ]


def test_suspend_of_a_session_at_work_is_pressed_twice():
    code = f"""
        import {{ Panel }} from {json.dumps(PANEL.as_uri())};
        const panel = Object.create(Panel.prototype);
        const said = [];
        Object.assign(panel, {{
          said: {{}},
          changed() {{}},
          service: {{ order: async (kind) => {{ said.push(kind); return null; }} }},
        }});
        const press = async (view) => {{
          panel.view = view;
          await panel.order("suspend", {{ stops: true }});
          said.push(panel.said.textContent.split(".")[0]);
        }};
        await press({{ usage: {{ busy_kernel: "a" }} }});
        await press({{ usage: {{ busy_kernel: "a" }} }});
        await press({{ usage: {{}} }});
        console.log(JSON.stringify(said));
    """
    away = "The service does not answer"
    ordered = ["suspend", away]
    assert json.loads(node(code)) == ["Kernel a is busy", *ordered, *ordered]


def test_title_of_the_tab_says_what_comes_before_the_pages_own():
    code = f"""
        import {{ Item }} from {json.dumps(ITEM.as_uri())};
        globalThis.document = {{ title: "mine.ipynb" }};
        const item = Object.create(Item.prototype);
        const titles = [];
        const tell = (changes) => {{
          Object.assign(item, changes);
          item.entitle();
          titles.push(document.title);
        }};
        const view = {{ phase: "warned", suspends_at: 128 }};
        tell({{ service: {{ now: () => 100 }}, mark: "", absent: "", view }});
        document.title = "other.ipynb";
        tell({{}});
        tell({{ view: null, absent: "Suspended" }});
        tell({{ absent: "" }});
        console.log(JSON.stringify(titles));
    """
    assert json.loads(node(code)) == [
        "Suspending in 28 s · mine.ipynb",
        "Suspending in 28 s · other.ipynb",
        "Suspended · other.ipynb",
        "other.ipynb",
    ]


def test_admin_panel_knows_a_gpu_that_works_from_the_window_or_the_last_look(tmp_path):
    folder = tmp_path / "static"
    shutil.copytree(SESSION.parent, folder)
    (folder / "orders.js").write_bytes(pages.ORDERS_SCRIPT)  # as the service sends it
    views = [{"gpus": [CARD]}, {"usage": {"gpu_percent": 90}}, {"gpus": []}]
    code = f"""
        import {{ worksOnGpu }} from {json.dumps((folder / "session.js").as_uri())};
        console.log(JSON.stringify({json.dumps(views)}.map(worksOnGpu)));
    """
    assert json.loads(node(code)) == [True, True, False]


def test_nap_is_told_with_what_it_has_moved_out_and_what_brings_it_back(words):
    nap = {"begun": NOW - 60, "gpus": [CARD, {**CARD, "memory": None}]}
    usage = {"last_active": NOW - 300}
    napping = view(phase="napping", facts={"nap": nap}, usage=usage, gpus=[])
    warned = {**napping, "phase": "warned", "suspends_at": NOW + 120}
    told = words(
        ("inOneLine", napping, NOW),
        ("inOneLine", warned, NOW),
        ("inFull", napping, NOW),
    )
    line = "GPU naps, 12 GB moved out · idle 5 min"
    assert told == [
        line,
        f"{line} · suspends in 2 min",
        [
            ["GPU memory", "12 GB moved out; running a cell brings it back"],
            ["Last used", "5 min ago"],
        ],
    ]


def test_wake_is_told_by_its_place_and_then_by_the_seconds_that_are_left(words):
    nap = {"begun": NOW - 60, "gpus": [CARD]}
    cases = {
        "Waiting for a GPU, number 2 in the queue": {"place": 2},
        "Getting your GPU memory back, 2 s": {"waking_until": NOW + 1.4},
        "Getting your GPU memory back": {"waking_until": NOW - 3},
    }
    views = [
        view(phase="napping", facts={"nap": nap, **facts}) for facts in cases.values()
    ]
    assert words(*[("inOneLine", one, NOW) for one in views]) == list(cases)
    (full,) = words(("inFull", views[0], NOW))
    assert full[0] == ["GPU memory", "12 GB: waiting for a GPU, number 2 in the queue"]
    # A place without a nap is another one: of a session that is being resumed.
    (awake,) = words(("waking", view(facts={"place": 2}), NOW))
    assert awake == ""


def test_tab_asks_at_once_and_often_when_a_person_may_have_woken_the_session():
    napping = view(phase="napping", facts={"nap": {"gpus": [CARD]}})
    waking = view(phase="napping", facts={"nap": {"gpus": [CARD]}, "place": 1})
    code = f"""
        const handlers = {{}};
        globalThis.document = {{
          hidden: false,
          addEventListener: (what, act) => {{ handlers[what] = act; }},
        }};
        const {{ Updates }} = await import({json.dumps(UPDATES.as_uri())});
        const parts = {{
          notice: {{ tells: () => false, hide() {{}} }},
          service: {{ now: () => {NOW} }},
          watch: {{ hold() {{}}, addEventListener() {{}} }},
        }};
        const updates = new Updates(parts, {{ tell() {{}}, panel: {{}} }});
        const told = [];
        let asked = 0;
        updates.rest.nudge = () => {{ asked += 1; }};
        const tell = (one) => {{
          updates.tell(one);
          told.push(updates.patience);
        }};
        handlers.keydown();
        told.push(asked);
        tell({json.dumps(view())});
        updates.acted = 0;
        tell({json.dumps(napping)});
        handlers.keydown();
        updates.looked = Date.now();
        handlers.pointerdown();
        told.push(asked);
        tell({json.dumps(napping)});
        updates.acted = 0;
        tell({json.dumps(waking)});
        for (const due of [100, 20, 1, -1, -100, -1000]) {{
          tell({{ ...{json.dumps(view())}, suspends_at: {NOW} + due }});
        }}
        console.log(JSON.stringify(told));
    """
    calm, soon = 30000, 2000
    assert json.loads(node(code)) == [
        *(0, calm, calm, 1, soon, soon),
        *(calm, 18000, soon, soon, soon, calm),  # a warning is to come
    ]


def test_unknown_use_is_never_called_idle(words):
    lines = words(("inFull", {"phase": "running"}, NOW), ("idleFor", view(), NOW))
    assert lines == [[], None]


def test_warning_counts_the_seconds_that_are_left(words):
    told = words(*[("countdown", seconds) for seconds in (120, 48.4, 0.2, -3)])
    assert told == ["2 min", "48 s", "0 s", "0 s"]


def test_only_what_the_limits_of_a_keep_allow_is_offered(words):
    day, hour = 86400, 3600
    offered = words(*[("keepChoices", one) for one in (day, 2 * hour, 1900, 200, 0)])
    assert offered == [[hour, 4 * hour], [hour], [1860], [], []]


def test_suspended_session_is_told_with_all_that_is_known_and_no_more(words):
    known = {
        "at": NOW - 3900,
        "why": "Idle for 15 min.",
        "bytes": 41_000_000_000,
        "until": None,
    }
    full, bare = words(
        ("absentInFull", view(facts={"suspension": known}), NOW),
        ("absentInFull", view(phase="suspended", since=NOW - 60), NOW),
    )
    since = full.pop(1)
    assert since[0] == "Since"
    assert since[1].endswith("(1 h 5 min ago)")
    assert full == [
        ["Why", "Idle for 15 min."],
        ["Size", "41 GB"],
        ["Kept until", "you resume or delete it"],
    ]
    assert [name for name, _ in bare] == ["Since", "Kept until"]


def test_times_in_sentences_are_the_readers_own(words):
    """The program that asks runs in UTC or not: its own clock says which."""
    kept = "Kept until 2001-02-03 04:05 UTC at the request of ada."
    at = datetime(2001, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    said, own = words(("inLocalTime", kept), ("clockTime", at))
    assert said == f"Kept until {own} at the request of ada."
    assert "UTC" not in said


def test_progress_grows_with_steps_and_bytes_and_never_says_done(words):
    done = {"title": "Making room", "state": "done"}
    reading = {"title": "Bringing the memory back", "state": "going"}
    half = {**reading, "bytes": 2 * 10**9, "total_bytes": 4 * 10**9}
    told = words(
        ("percent", []),
        ("percent", [done]),
        ("percent", [done, half]),
        ("percent", [done] * 40),
        ("stepText", half),
        ("stepText", done),
    )
    assert told[0] < told[1] < told[2] < told[3] <= 92
    assert told[4:] == ["Bringing the memory back: 2.0 GB of 4.0 GB", "Making room"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(20, "less than a minute"), (60, "1 min"), (3600, "1 h"), (3900, "1 h 5 min")],
)
def test_duration_is_in_minutes_and_hours(words, seconds, expected):
    assert words(("duration", seconds)) == [expected]


def test_clock_of_a_page_is_the_services_and_no_count_jumps_back():
    # (the page's clock, the service's when it answers); the header has whole seconds
    answers = [(100.5, 160.9), (102.5, 162.9), (104.9, 162.0), (106.1, 166.1)]
    later = [(200.0, 230.4), (210.0, None)]  # somebody has set the page's clock
    code = f"""
        import {{ Service }} from {json.dumps(SERVICE.as_uri())};
        const service = new Service({{}}, null);
        const ahead = [];
        for (const [here, there] of {json.dumps(answers + later)}) {{
          Date.now = () => 1000 * here;
          service.setClock(there && new Date(1000 * there).toUTCString());
          ahead.push(Math.round(10 * (service.now() - here)) / 10);
        }}
        console.log(JSON.stringify(ahead));
    """
    assert json.loads(node(code)) == [59.5, 59.5, 59.5, 59.9, 30.0, 30.0]


@pytest.mark.parametrize(
    ("resumed", "told"),
    [
        ({"as_of": NOW, "newer": []}, "outputs below may be newer."),
        (
            {"as_of": NOW, "newer": ["/h/newer than 13:55"]},
            "outputs below may be newer. Newer files are in /h/newer than 13:55.",
        ),
        ({"as_of": 0, "newer": []}, ""),
    ],
)
def test_tab_says_to_which_moment_its_session_went(resumed, told):
    said = node(f"""
        globalThis.document = new Proxy(function () {{}}, {{
          get: (target, name) => (name === Symbol.toPrimitive ? () => "" : document),
          apply: () => document,
          set: () => true,
        }});
        const {{ Absence }} = await import({json.dumps(ABSENCE.as_uri())});
        const said = [];
        const views = [null, {{ facts: {{ resumed: {json.dumps(resumed)} }} }}];
        await Absence.prototype.tellMoment.call({{
          service: {{ view: async () => views.shift() }},
          notice: {{ show: (text) => said.push(text) }},
        }});
        console.log(said.join());
    """).strip()
    if not told:
        assert said == ""
        return
    assert said.startswith("Your session is now as it was at ")
    assert said.endswith(told)
