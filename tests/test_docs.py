"""The reference cannot rot: every setting and reason is documented, by test."""

import ast
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyterhub_gpu_reclaim.common.agent_orders import AGENT_ORDERS
from jupyterhub_gpu_reclaim.common.node_status import STORE_CODES
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api import openapi

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))


@pytest.mark.parametrize("page", generate["PAGES"])
def test_generated_page_is_what_the_code_says(page: str) -> None:
    written = (ROOT / "docs" / page).read_text()
    made = generate["PAGES"][page]()
    assert written == made, "run .venv/bin/python docs/generate.py"


def test_every_message_has_a_cause_and_an_action() -> None:
    parts = generate["messages_by_part"]()
    page = generate["messages"]()
    told = [code for part in parts for code in part.messages]
    assert sorted(told) == sorted(reason.value for reason in Reason)
    for part in parts:
        for code, (cause, action) in part.messages.items():
            assert cause, code
            assert action, code
            assert f'<a id="{code}"></a>' in page


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_every_message_says_what_to_do_or_that_nothing_is(reason: Reason) -> None:
    written_where_it_is_said = reason.template == "{what}"
    assert reason.hint or written_where_it_is_said
    assert "{" not in reason.hint


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "README.md").read_text()
    for page in ROOT.glob("docs/*/*.md"):
        assert f"({page.relative_to(ROOT / 'docs')})" in contents, page


@pytest.mark.parametrize(
    ("configured", "name", "trait"),
    [
        (configured.__name__, name, trait)
        for classes in generate["CONFIGURED"].values()
        for configured in classes
        for name, trait in generate["own_traits"](configured).items()
    ],
)
def test_setting_has_help_that_says_something(
    configured: str, name: str, trait: object
) -> None:
    text = str(trait.help).rstrip()  # type: ignore[attr-defined]
    assert len(text) > 40, f"{configured}.{name}"
    assert text.endswith("."), f"{configured}.{name}"


def test_most_used_settings_are_there_and_in_the_how_tos() -> None:
    text = "".join(page.read_text() for page in GUIDES if page.parent.name == "how-to")
    known = {
        f"{configured.__name__}.{name}"
        for classes in generate["CONFIGURED"].values()
        for configured in classes
        for name in generate["own_traits"](configured)
    }
    for setting in generate["MOST_USED"]:
        assert setting in known
        assert setting.partition(".")[2] in text, setting


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
def test_reason_is_a_sentence_with_a_stable_code(reason: Reason) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", reason.value)
    assert reason.template.endswith((".", "}"))
    assert reason.sentence()


#: Written by hand, for people who type what stands there.
GUIDES = [
    ROOT / "README.md",
    *ROOT.glob("docs/tutorial/*"),
    *ROOT.glob("docs/how-to/*"),
]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        if heading and there.suffix == ".md":
            assert heading in headings(there), target


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = page.read_text()
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}
    return made | set(re.findall(r'<a id="([\w-]+)">', text))


ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "etc/prometheus/alerts.yml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_leads_to_an_anchor_that_is_there(rule: dict[str, Any]) -> None:
    for path, heading in re.findall(
        r"(docs/[\w/-]+\.md)(?:#([\w-]+|\{\{ \$labels\.code \}\}))?",
        rule["annotations"]["description"],
    ):
        anchors = headings(ROOT / path)
        assert not heading or "{" in heading or heading in anchors
        if "{" in heading:  # whatever code it fires for
            assert {reason.value for reason in Reason} <= anchors


def shown() -> str:
    """What people are shown: sentences and strings of the code, templates, alerts."""
    package = ROOT / "jupyterhub_gpu_reclaim"
    words = [re.sub(r"\{\w+\}", "", reason.pattern) for reason in Reason]
    for path in package.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        told = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Expr)  # docstrings
        }
        words += [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in told
        ]
    for kind in ("html", "js"):
        words += [path.read_text() for path in package.rglob(f"*.{kind}")]
    return " ".join(" ".join(words).split())


def test_symptoms_quote_what_is_really_shown() -> None:
    page, said = (ROOT / "docs/how-to/symptoms.md").read_text(), shown()
    quotes = re.findall(r'"([^"]+)"', page)
    assert len(quotes) > 10
    for quote in quotes:
        for part in quote.split("…"):
            assert part.strip() in said, quote


#: What is red on the pages, fires an alert, and keeps somebody from their work.
RED = STORE_CODES | {"agent_unreachable", "node_silent", "node_closed"}


@pytest.mark.parametrize("code", sorted(RED))
def test_what_is_red_leads_to_a_cure_with_its_command(code: str) -> None:
    assert f"messages.md#{code})" in (ROOT / "docs/how-to/symptoms.md").read_text()
    (action,) = (
        row[1]
        for part in generate["messages_by_part"]()
        for told, row in part.messages.items()
        if told == code
    )
    assert re.search(
        r"`(jupyterhub-gpu-reclaim|systemctl|kubectl|mount|journalc)", action
    )


@pytest.mark.parametrize("page", sorted(GUIDES), ids=lambda p: p.name)
def test_settings_that_a_page_names_are_there(page: Path) -> None:
    known = {
        configured.__name__: set(generate["own_traits"](configured))
        for classes in generate["CONFIGURED"].values()
        for configured in classes
    }
    for owner, name in re.findall(r"\b([A-Z]\w+)\.([a-z]\w+)\b", page.read_text()):
        if owner in known:
            assert name in known[owner], f"{owner}.{name}"


def test_commands_that_pages_show_are_understood() -> None:
    parser = generate["program"]()
    lines = "\n".join(page.read_text() for page in GUIDES).replace("\\\n", " ")
    shown = re.findall(
        r"(?:^|[`$ /])(?:jupyterhub-gpu-reclaim|jupyterhub_gpu_reclaim\.cli)"
        r"((?: [a-z][a-z-]*\b)[^`#|;(&>\n]*)",
        lines,
        re.MULTILINE,
    )
    assert len(shown) > 20
    for command in shown:
        parser.parse_args(shlex.split(command))


def test_files_and_methods_that_the_walks_name_are_there() -> None:
    code = {
        f"/{path.relative_to(ROOT)}": path.read_text()
        for path in (ROOT / "jupyterhub_gpu_reclaim").rglob("*.py")
    }
    text = (ROOT / "docs" / "explanation" / "walks.md").read_text()
    files = re.findall(r"`([\w/]+\.py)`", text)
    methods = re.findall(r"`([A-Z]\w+)\.([a-z_]\w+)`", text)
    assert len(files) > 50
    assert len(methods) > 10
    for name in set(files) - {"jupyterhub_config.py"}:
        assert any(path.endswith(f"/{name}") for path in code), name
    for owner, name in methods:
        named = re.compile(rf"\b(def {name}\b|{name}:|{name} = )")
        places = [one for one in code.values() if f"class {owner}" in one]
        if not owner.endswith(("Service", "App")):  # their settings are looked at above
            assert any(map(named.search, places)), f"{owner}.{name}"


#: Names of JupyterHub, its spawners, nginx and SELinux that pages mention.
FOREIGN = {
    "apply_user_options",
    "control_t",
    "device_requests",
    "extra_host_config",
    "manage_roles",
    "proxy_hide_header",
    "test_profile",
    "test_single_user_spawner",
    "test_variable_expansion",
    "token_expires_in_max_seconds",
    "user_environment",
}


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def words_of_the_code() -> set[str]:
    """Every name that the package or what is shipped beside it has."""
    files = (
        path
        for folder in ("jupyterhub_gpu_reclaim", "etc", "helm-values", "demo", "soak")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".yml", ".json", ".js", ".html", ".service"}
    )
    tools = (
        path
        for folder in ("benchmarks", "tests")
        for path in (ROOT / folder).rglob("*.py")
    )
    names = {reason.value for reason in Reason}
    for path in (*files, *tools):
        if path != Path(__file__):
            names.update(re.findall(r"[a-z][a-z0-9_]*", path.read_text()))
    return names


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda p: p.name)
def test_reasons_and_names_of_the_code_in_a_page_are_there(
    page: Path, words_of_the_code: set[str]
) -> None:
    named = set(re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", prose(page)))
    metrics = {name for name in named if name.startswith("jupyterhub_gpu_reclaim_")}
    assert named - metrics - words_of_the_code - FOREIGN == set()


def test_routes_that_pages_name_are_there() -> None:
    agent = (ROOT / "jupyterhub_gpu_reclaim/node/http/routes.py").read_text()
    looks = re.findall(r"/(?:v1/|healthz|readyz)[^\"]*", agent)
    orders = [each.kind for each in AGENT_ORDERS]
    paths = [*openapi("/")["paths"], *looks, *orders, "gpu-reclaim/pass"]
    known = {part for path in paths for part in re.split(r"[/|()]", path)}
    shown = [
        (page.name, path)
        for page in PAGES
        for path in re.findall(r"`(?:GET|POST|PUT|DELETE) ([^`\s\"]+)", prose(page))
        if not path.startswith("/hub/")
    ]
    assert len(shown) > 20
    for page, path in shown:
        fixed = re.sub(r"\{[^}]*\}|\[[^]]*\]|[?].*", "", path).split("/")
        unknown = {part for part in fixed if re.fullmatch("[a-z-]+", part)} - known
        assert not unknown - {"api"}, f"{page}: {path}"
