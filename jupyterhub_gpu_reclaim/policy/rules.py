"""Rules: other thresholds for some sessions, by user, group, profile, option or label.

Pure; configured by administrators. An unknown fact that a rule asks for is never taken
for "no": the session is left alone until it is known (law 5).
"""

from __future__ import annotations

from ast import literal_eval
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Dict, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionPolicy, Value
from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.policy.guards import parse_period
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Rule = dict[str, Any]

#: Longest time that a rule may set: a year, in seconds.
_LONGEST = 366 * 86400.0


class _Duration(Seconds):
    info_text = "a duration in seconds, at most a year"


#: Settings of ``IdlePolicy``, which checks them.
_OF_IDLENESS = (
    "busy_cpu_percent",
    "busy_gpu_percent",
    "busy_data_rate",
    "page_data_rate",
    "prompt_idle_after",
    "connections_after",
    "connected_is_active",
    "wake_for_jobs",
)
#: What a rule may set, in the order of display, and what checks it.
SETTINGS: dict[str, Any] = {
    "idle_after": _Duration(max=_LONGEST),
    "nap_after": _Duration(max=_LONGEST),
    "save_every": _Duration(max=_LONGEST),
    "warn_for": _Duration(max=_LONGEST),
    "min_age": _Duration(max=_LONGEST),
    "cool_down": _Duration(max=_LONGEST),
    "never": Bool(),
    "together": Bool(),
    "quiet_hours": List(Unicode()),
    **{name: IdlePolicy.class_traits()[name] for name in _OF_IDLENESS},
}
#: Facts that are known at once, of a suspended session, too.
_ALWAYS_KNOWN = {"user", "server"}


class Subject(Value, frozen=True, kw_only=True):
    """Facts about a session's owner and start; ``None``: unknown now."""

    key: SessionKey
    groups: list[str] | None = None  #: the Hub's groups of its user
    #: options that it was started with, as text or lists of texts
    options: dict[str, list[str]] | None = None
    labels: dict[str, str] | None = None  #: of its pod; empty outside of Kubernetes


class _RuleList(List[Rule]):
    def from_string_list(self, s_list: list[str]) -> list[Any]:
        # One rule from each string, or all from one, as of ``hub_config``.
        found: list[Any] = []
        for value in map(literal_eval, s_list):
            found += value if isinstance(value, list) else [value]
        return found


class Rules(Configurable):
    rules = _RuleList(
        Dict(),
        help="""Rules that set other values for some sessions.

        Each rule is a dictionary that says whom it is for and what it sets. For whom:
        ``user``, ``server``, ``group`` (of the Hub), ``profile`` (KubeSpawner's
        ``user_options["profile"]``), ``option`` and ``label`` (of the pod), the latter
        two as ``name=value`` or just ``name``. Values are patterns (``h100*``) or
        lists of them, one of which must fit; of several keys in one rule all must fit.
        What: ``idle_after``, ``nap_after``, ``save_every``, ``warn_for``, ``min_age``,
        ``cool_down`` (seconds), ``never`` (True: no policy suspends it or lets it nap),
        ``together`` (True: a user's servers for which the same rule says so are
        suspended all or none, and come back together; it goes with ``user`` and
        ``server`` alone), ``quiet_hours`` (a list), and, with the same values as in
        ``IdlePolicy``, None included: ``busy_cpu_percent``, ``busy_gpu_percent``,
        ``busy_data_rate``, ``page_data_rate``, ``prompt_idle_after``,
        ``connections_after``, ``connected_is_active`` and ``wake_for_jobs``. For each
        of these the first rule that fits and sets it decides. Options, and so profiles,
        are what users say at the start: with a rule for an option, anyone who says it
        gets what it sets. While something that a rule asks for is not known, the
        session is not suspended. Empty: the same for all. Example:
        [{"group": "course-101", "idle_after": 3600, "warn_for": 600},
        {"profile": "h100*", "idle_after": 600}, {"option": "gpu_reclaim=off",
        "never": True}].
        """,
    ).tag(config=True)

    @validate("rules")
    def _check_rules(self, proposal: Any) -> list[Rule]:
        rules: list[Rule] = proposal["value"]
        for number, rule in enumerate(rules, start=1):
            try:
                _check_rule(rule)
            except ValueError as error:
                raise TraitError(f"Rules.rules: rule {number}: {error}") from None
        return rules

    def policy_for(self, about: Subject) -> SessionPolicy:
        """Each setting is from the first rule that fits."""
        found: dict[str, Any] = {}
        by: dict[str, str] = {}
        unknown: list[str] = []
        for rule in self.rules:
            open_ = [name for name in SETTINGS if name in rule and name not in by]
            if not open_:
                continue
            fits, lacking = _fits(rule, about)
            unknown += lacking
            for name in open_ if fits else ():
                found[name] = rule[name]
                by[name] = name_of(rule)
        return SessionPolicy(
            **found, by=by, unknown=" and ".join(dict.fromkeys(unknown))
        )

    def longest(self, setting: str) -> float:
        """The largest value of that setting in any rule, in seconds; 0: in none."""
        return max((float(r[setting]) for r in self.rules if setting in r), default=0.0)


def name_of(rule: Rule) -> str:
    """A rule's name in sentences: ``group course-101 and profile h100*``."""
    parts = [
        f"{name} {' or '.join(_as_list(rule[name]))}" for name in _MATCH & rule.keys()
    ]
    return " and ".join(sorted(parts))


def _fits(rule: Rule, about: Subject) -> tuple[bool, list[str]]:
    """Whether it is for that session, and the missing facts that may decide it."""
    answers = [
        (match(_as_list(rule[name]), about), what)
        for name, (match, what) in _CONDITIONS.items()
        if name in rule
    ]
    if any(answer is False for answer, _ in answers):
        return False, []
    unknown = [what for answer, what in answers if answer is None]
    return not unknown, unknown


def _matches_any(patterns: list[str], values: Iterable[str] | None) -> bool | None:
    if values is None:
        return None
    known = list(values)
    return any(fnmatchcase(value, p) for p in patterns for value in known)


def _matches_named(
    patterns: list[str], values: Mapping[str, list[str]] | None
) -> bool | None:
    """Whether ``name=pattern`` fits; a bare ``name`` fits if it has a value."""
    if values is None:
        return None
    for pattern in patterns:
        name, equals, wanted = pattern.partition("=")
        found = [value for value in values.get(name, []) if value]
        if _matches_any([wanted if equals else "*"], found):
            return True
    return False


def _labels(about: Subject) -> dict[str, list[str]] | None:
    if about.labels is None:
        return None
    # A label without a value is a label all the same.
    return {name: [value or "true"] for name, value in about.labels.items()}


def _profile(about: Subject) -> list[str] | None:
    return None if about.options is None else about.options.get("profile", [])


_CONDITIONS: dict[str, tuple[Callable[[list[str], Subject], bool | None], str]] = {
    "user": (lambda p, about: _matches_any(p, [about.key.user]), ""),
    "server": (lambda p, about: _matches_any(p, [about.key.server]), ""),
    "group": (lambda p, about: _matches_any(p, about.groups), "its user's groups"),
    "profile": (lambda p, about: _matches_any(p, _profile(about)), "its profile"),
    "option": (lambda p, about: _matches_named(p, about.options), "its options"),
    "label": (lambda p, about: _matches_named(p, _labels(about)), "its pod's labels"),
}
_MATCH = _CONDITIONS.keys()


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


# --- checks when they are configured
def _check_rule(rule: Rule) -> None:
    """Raise ValueError with a sentence that says what is wrong."""
    strange = [str(name) for name in rule if name not in {*_MATCH, *SETTINGS}]
    if strange:
        known = ", ".join([*_MATCH, *SETTINGS])
        raise ValueError(f"{strange[0]!r} is not one of {known}")
    if not _MATCH & rule.keys():
        raise ValueError(
            f"it does not say whom it is for; name one of {', '.join(_MATCH)}"
        )
    if not rule.keys() & SETTINGS.keys():
        raise ValueError(f"it sets nothing; set one of {', '.join(SETTINGS)}")
    if "together" in rule and (others := sorted(_MATCH & rule.keys() - _ALWAYS_KNOWN)):
        raise ValueError(
            f"'together' cannot depend on {others[0]!r}, which is not known of a"
            " suspended session; use 'user' and 'server'"
        )
    for name in rule:
        if name in _MATCH:
            _check_patterns(name, rule[name])
        else:
            _check_setting(name, rule[name])


def _check_patterns(name: str, value: Any) -> None:
    patterns = [value] if isinstance(value, str) else value
    texts = isinstance(patterns, list | tuple) and all(
        isinstance(each, str) for each in patterns
    )
    if not texts or not patterns:
        raise ValueError(f"{name!r} must be a text or a list of texts, not {value!r}")
    if name != "server" and "" in patterns:
        raise ValueError(f"{name!r} must not be empty")


def _check_setting(name: str, value: Any) -> None:
    trait = SETTINGS[name]
    is_good = isinstance(value, bool) == isinstance(trait, Bool)
    try:
        if value is not None or not trait.allow_none:
            trait.validate(Configurable(), value)
    except TraitError:
        is_good = False
    if not is_good:
        good = trait.info() + (", or None" if trait.allow_none else "")
        raise ValueError(f"{name!r} must be {good}; not {value!r}")
    if name == "quiet_hours":
        for text in value:
            parse_period(text)
