"""Writes the reference pages, and the how-to of messages, from the code.

.venv/bin/python docs/generate.py           writes them, and says which have changed
.venv/bin/python docs/generate.py --check   fails when they are out of date
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml
from api_page import api
from kinds_page import what_comes_back
from pieces import page, table

from jupyterhub_gpu_reclaim.cli.main import COMMANDS
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.audit import SENTENCES
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.metrics import Totals
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from jupyterhub_gpu_reclaim.hub.docker.spawner import ReclaimDockerSpawner
from jupyterhub_gpu_reclaim.hub.kube.spawner import ReclaimKubeSpawner
from jupyterhub_gpu_reclaim.hub.local.spawner import ReclaimLocalSpawner
from jupyterhub_gpu_reclaim.node.app import AgentApp
from jupyterhub_gpu_reclaim.service.app import ReclaimService
from jupyterhub_gpu_reclaim.service.metrics import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traitlets import TraitType
    from traitlets.config import Configurable

DOCS = Path(__file__).parent
ALERT_RULES = DOCS.parent / "etc/prometheus/alerts.yml"
SERVICE_PARTS = [
    one for one in ReclaimService.classes if one.__module__.startswith("jupyterhub_gpu")
]
CONFIGURED = {
    "The policy": SERVICE_PARTS,
    "The service": [ReclaimService],
    "The spawners": [ReclaimLocalSpawner, ReclaimDockerSpawner, ReclaimKubeSpawner],
    "The agent": [AgentApp],
}

#: The settings that the how-tos are about; the reference shows them first.
MOST_USED = (
    "IdlePolicy.idle_after",
    "ReclaimService.warn_for",
    "Guards.min_age",
    "Guards.cool_down",
    "Guards.quiet_hours",
    "Rules.rules",
    "PressurePolicy.pressure_idle_after",
    "ReclaimService.keep_limit",
    "ReclaimService.seats_per_gpu",
    "NapPolicy.nap_after",
    "ReclaimService.save_every",
    "ReclaimService.set_aside_days",
    "ReclaimService.user_quota_gb",
    "AgentApp.store_url",
    "AgentApp.master_key_file",
)


def reasons() -> str:
    """Every reason code with its sentence and what to do."""
    head = ("code", "sentence", "what to do", "worth trying again")
    rows = [
        (f"`{r.value}`", r.pattern, r.hint, "yes" if r.retryable else "")
        for r in Reason
    ]
    about = """
Every refusal, failure and veto has a stable code and a sentence. What to do about each
is in [the how-to of messages](../how-to/messages.md). This page is generated from
`jupyterhub_gpu_reclaim/common/reasons.py`.
"""
    return page("Reasons", about, *table(head, *rows))


class Part(Value, frozen=True, kw_only=True):
    """Messages that belong to the same occasion; texts are Markdown."""

    title: str
    about: str
    messages: dict[str, tuple[str, str]]  #: code -> cause, and what to do


def messages_by_part() -> list[Part]:
    """Cause and action of every message, in the order of the how-to."""
    return msgspec.yaml.decode((DOCS / "messages.yaml").read_bytes(), type=list[Part])


def messages() -> str:
    """Each message, its cause and what to do, in the order of ``messages.yaml``."""
    lines: list[str] = []
    for part in messages_by_part():
        lines += [f"## {part.title}", "", *part.about.strip().splitlines(), ""]
        rows: list[tuple[object, ...]] = [("message", "cause", "what to do")]
        for code, (cause, action) in part.messages.items():
            said = f'<a id="{code}"></a>{Reason[code.upper()].pattern} (`{code}`)'
            rows.append((said, cause, action))
        lines += [*table(*rows), ""]
    about = """
Every message that you can meet, why it comes, and what to do. Words in braces are
placeholders. Programs, logs and the command line show the code in brackets. This page
is generated: the messages from `jupyterhub_gpu_reclaim/common/reasons.py`, causes and
actions from `docs/messages.yaml`. Each message has its code as an anchor.
"""
    return page("What a message means, and what to do", about, *lines[:-1])


def own_traits(configured: type[Configurable]) -> dict[str, TraitType[object, object]]:
    """The settings that the package itself defines for a class."""
    ours = [
        kind
        for kind in inspect.getmro(configured)
        if kind.__module__.startswith("jupyterhub_gpu_reclaim")
    ]
    return {
        name: trait
        for name, trait in sorted(configured.class_traits(config=True).items())
        if any(name in vars(kind) for kind in ours)
    }


def settings() -> str:
    """Every setting with its default and help, the most used first."""
    most: dict[str, list[str]] = {name: [] for name in MOST_USED}
    lines: list[str] = []
    for title, classes in CONFIGURED.items():
        lines += [f"## {title}", ""]
        alike: dict[tuple[object, str], list[str]] = {}  # what several classes inherit
        for configured in classes:
            for name, trait in own_traits(configured).items():
                owners = alike.setdefault((trait.this_class, name), [])
                owners.append(configured.__name__)
        for (kind, name), owners in alike.items():
            trait = getattr(kind, name)
            default = trait.default_value_repr()
            heading = ", ".join(f"`{owner}.{name}`" for owner in owners)
            shown = [f"### {heading}", "", f"{trait.info()}; default `{default}`", ""]
            shown += [inspect.cleandoc(str(trait.help)), ""]
            most.get(heading.strip("`"), lines).extend(shown)
    first = ["## Most used", "", *(line for one in most.values() for line in one)]
    about = """
The most used come first; each of the others says when one would touch it. Generated
from the code. The policy's and the service's settings go into `configure(c, …)` by the
name after the dot; the spawner's into `jupyterhub_config.py`; the agent's on its
command line or into its file.
"""
    return page("Settings", about, *first, *lines[:-1])


def events() -> str:
    """The lines of the event log, and the audit's words."""
    words = [(f"`{word}`", told) for word, told in SENTENCES.items()]
    about = """
The lines of `ReclaimService.event_log`: JSON, one a line, with the fields of a line of
the history in [the API](api.md) (`AuditLine`). One is written for each line of the
journal's audit, in the same order, soon after it; `id` grows. What happens in the last
second before a crash is in the journal alone. This page is generated from
`jupyterhub_gpu_reclaim/controlplane/audit.py`.
"""
    return page("The event log", about, *table(("`what`", "as people read it"), *words))


def metrics() -> str:
    """Every metric, as the exporter describes it."""
    sessions = Sessions(Journal("sqlite://"), SystemClock())
    rows: list[tuple[object, ...]] = [("metric", "type", "labels", "what it says")]
    for family in registry(Totals(sessions)).collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        known = getattr(family, "_labelnames", ())
        labels = dict.fromkeys(known or [n for s in family.samples for n in s.labels])
        labels.pop("le", None)
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append((f"`{name}`", family.type, shown, family.documentation))
    about = """
At `/services/gpu-reclaim/metrics`, for Prometheus; how to have them scraped, and what
to make of them, is in [the how-to for operators](../how-to/operate.md). No name of
a user is in them. This page is generated from the exporter.
"""
    return page("Metrics", about, *table(*rows))


def alerts() -> str:
    """Every alert, as its rule says it; what Prometheus fills in is in braces."""
    rows: list[tuple[object, ...]] = [("alert", "severity", "what is wrong", "more")]
    for group in yaml.safe_load(ALERT_RULES.read_text())["groups"]:
        for rule in group["rules"]:
            said = [
                _linked(re.sub(_FILLED_IN, r"{\1}", text))
                for text in (
                    rule["annotations"]["summary"],
                    rule["annotations"]["description"],
                )
            ]
            rows.append((f"`{rule['alert']}`", rule["labels"]["severity"], *said))
    about = """
The alerts of [etc/prometheus/alerts.yml](../../etc/prometheus/alerts.yml), from which
this page is generated; how to load them is in [the how-to for
operators](../how-to/operate.md#alerts), the codes in [the how-to of
messages](../how-to/messages.md). Words in braces are placeholders.
"""
    return page("Alerts", about, *table(*rows))


def _linked(text: str) -> str:
    """An alert's words with links; an anchor that Prometheus fills in is left out."""
    return re.sub(
        r"docs/([\w/-]+\.md)(#[\w-]+|#\{code\})?",
        lambda page: (
            f"[{page[0]}](../{page[1]}{(page[2] or '').replace('#{code}', '')})"
        ),
        text,
    )


def commands() -> str:
    """Every command with its options."""
    lines = [line for one in _parsers(program()) for line in _command(one)]
    about = """
`jupyterhub-gpu-reclaim`, for administrators; examples are in [the how-to for
operators](../how-to/operate.md). Exit code 0: done, 1: it failed or was refused (the
reason and its code are printed to stderr), 2: wrong usage, 3: the service does not
answer, 4: not done within the time limit. This page is generated.
"""
    return page("Commands", about, *lines[:-1])


def program() -> argparse.ArgumentParser:
    """The whole command."""
    parser = argparse.ArgumentParser(prog="jupyterhub-gpu-reclaim")
    found = parser.add_subparsers(metavar="COMMAND")
    for module in COMMANDS:
        module.register(found)
    return parser


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands that do something, below a parser."""
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]  # noqa: SLF001
    if not nested:
        yield parser
    for action in nested:
        for one in action.choices.values():
            yield from _parsers(one)


def _command(parser: argparse.ArgumentParser) -> list[str]:
    rows: list[tuple[object, ...]] = [("argument", "meaning")]
    for action in parser._actions:  # noqa: SLF001
        if "--help" not in action.option_strings:
            value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
            names = ", ".join(action.option_strings)
            shown = f"{names} {value if action.nargs != 0 else ''}".strip()
            text = str(action.help or "").replace("%(default)s", str(action.default))
            rows.append((f"`{shown}`", text))
    about = str(parser.description or "")
    return [f"## `{parser.prog}`", "", about, "", *table(*rows), ""]


#: What Prometheus fills into an alert's words: ``{{ $labels.code }}``.
_FILLED_IN = r"\{\{ (?:or )?\$(?:labels\.)?(\w+)[^}]*\}\}"

PAGES = {
    "reference/reasons.md": reasons,
    "reference/settings.md": settings,
    "reference/api.md": api,
    "reference/events.md": events,
    "reference/metrics.md": metrics,
    "reference/commands.md": commands,
    "reference/alerts.md": alerts,
    "reference/what-comes-back.md": what_comes_back,
    "how-to/messages.md": messages,
}


def main() -> int:
    """Write or check the pages; returns the exit status."""
    if "--check" in sys.argv[1:]:
        old = [n for n, make in PAGES.items() if (DOCS / n).read_text() != make()]
        if old:
            print(f"out of date: {', '.join(old)}; run docs/generate.py")
        return bool(old)
    for name, make in PAGES.items():
        text = make()
        if (DOCS / name).read_text() != text:
            (DOCS / name).write_text(text)
            print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
