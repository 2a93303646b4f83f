"""Rules: whom they are for, which one decides, and what is not known."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traitlets import TraitError
from traitlets.config import Application

from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionPolicy
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.rules import SETTINGS, Rules, Subject

ADA = Subject(
    key=SessionKey("ada", "train"),
    groups=["course-101", "staff"],
    options={"profile": ["h100-big"], "gpu_reclaim": ["off"], "empty": [""]},
    labels={"team": "vision", "marked": ""},
)


def terms(*rules, about=ADA):
    return Rules(rules=list(rules)).policy_for(about)


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ({"user": "ada"}, True),
        ({"user": ["bob", "a?a"]}, True),
        ({"user": "ADA"}, False),
        ({"server": "train"}, True),
        ({"server": ""}, False),
        ({"group": "course-*"}, True),
        ({"group": "course"}, False),
        ({"profile": "h100*"}, True),
        ({"profile": "a100*"}, False),
        ({"option": "gpu_reclaim=off"}, True),
        ({"option": "gpu_reclaim=on"}, False),
        ({"option": "gpu_reclaim"}, True),
        ({"option": "empty"}, False),
        ({"option": "missing"}, False),
        ({"label": "team=vis*"}, True),
        ({"label": "marked"}, True),
        ({"label": "team=audio"}, False),
        ({"group": "staff", "profile": "h100*"}, True),
        ({"group": "staff", "profile": "a100*"}, False),
    ],
)
def test_rule_is_for_those_that_all_its_conditions_fit(condition, fits):
    found = terms({**condition, "idle_after": 60})
    assert found.idle_after == (60 if fits else None)
    assert not found.unknown


def test_first_rule_that_fits_decides_each_setting():
    found = terms(
        {"user": "bob", "never": True},
        {"group": "staff", "idle_after": 0, "never": False},
        {"profile": "h100*", "idle_after": 600, "warn_for": 120, "never": True},
    )
    assert (found.idle_after, found.warn_for, found.never) == (0, 120, False)
    assert found.by == {
        "idle_after": "group staff",
        "never": "group staff",
        "warn_for": "profile h100*",
    }


def test_servers_belong_together_by_the_rule_that_decides_it():
    rules = [
        {"server": "job-lab", "together": False},
        {"user": "ada", "server": ["job-*", "train"], "together": True},
    ]
    found = terms(*rules)
    assert found.together
    assert found.by["together"] == "server job-* or train and user ada"
    lab = msgspec.structs.replace(ADA, key=SessionKey("ada", "job-lab"))
    assert terms(*rules, about=lab).together is False


def test_what_is_not_known_is_never_taken_for_no():
    unknown = msgspec.structs.replace(ADA, groups=None, labels=None)
    rule = {"group": "staff", "never": True}
    assert terms(rule, about=unknown).unknown == "its user's groups"
    # a condition that surely does not fit, or a rule before it, makes it unimportant
    assert not terms({**rule, "user": "bob"}, about=unknown).unknown
    assert not terms({"user": "ada", "never": False}, rule, about=unknown).unknown
    late = terms(rule, {"user": "ada", "never": False}, about=unknown)
    assert late.unknown


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"idle_after": 60}, "whom it is for"),
        ({"user": "ada"}, "sets nothing"),
        ({"user": "ada", "idle": 60}, "'idle' is not one of"),
        ({"user": "ada", "idle_after": -1}, "duration in seconds"),
        ({"user": "ada", "idle_after": True}, "duration in seconds"),
        ({"user": "ada", "idle_after": float("nan")}, "duration in seconds"),
        ({"user": "ada", "warn_for": "60"}, "duration in seconds"),
        (
            {"user": "ada", "busy_data_rate": -1},
            "bytes a second, not negative, or None",
        ),
        ({"user": "ada", "page_data_rate": float("inf")}, "bytes a second"),
        ({"user": "ada", "busy_cpu_percent": True}, "a share in percent"),
        ({"user": "ada", "busy_gpu_percent": "5"}, "a share in percent"),
        ({"user": "ada", "prompt_idle_after": "1 h"}, "duration in seconds"),
        ({"user": "ada", "connections_after": None}, "not negative; not None"),
        ({"user": "ada", "connected_is_active": 1}, "a boolean"),
        ({"user": "ada", "never": "yes"}, "a boolean"),
        ({"user": "ada", "together": 1}, "a boolean"),
        ({"server": "job-*", "label": "x", "together": True}, "'label'"),
        ({"group": "staff", "together": True}, "suspended session"),
        ({"user": "ada", "quiet_hours": "08:00-18:00"}, "must be a list"),
        ({"user": "ada", "quiet_hours": ["8-18"]}, "write it as"),
        ({"user": 7, "never": True}, "text or a list of texts"),
        ({"group": [], "never": True}, "text or a list of texts"),
        ({"group": "", "never": True}, "must not be empty"),
    ],
)
def test_rule_that_makes_no_sense_is_refused_by_its_number(rule, why):
    with pytest.raises(TraitError, match="rule 2") as caught:
        Rules(rules=[{"user": "ada", "never": True}, rule])
    assert why in str(caught.value)


NAMES = st.sampled_from(["ada", "bob", "a*", "*", "h100", "off"])
RULES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("user", "group", "profile", "option", "label"), NAMES),
        "idle_after": st.integers(0, 99),
        "never": st.booleans(),
    },
).filter(
    lambda rule: (
        len(rule.keys() & {"idle_after", "never"}) in {1, 2}
        and rule.keys() - {"idle_after", "never"}
    )
)
MAYBE = st.one_of(st.none(), st.just(["ada", "h100"]), st.just([]))
ABOUT = st.builds(
    lambda groups, options: Subject(
        key=SessionKey("ada"),
        groups=groups,
        options=None if options is None else {name: [name] for name in options},
        labels={},
    ),
    MAYBE,
    MAYBE,
)


@settings(max_examples=50)
@given(st.lists(RULES, max_size=5), ABOUT)
def test_knowing_more_never_changes_what_was_certain(rules, about):
    before = Rules(rules=rules).policy_for(about)
    known = msgspec.structs.replace(
        about, groups=about.groups or [], options=about.options or {}
    )
    after = Rules(rules=rules).policy_for(known)
    assert not after.unknown
    assert before.by.keys() == {s for s in SETTINGS if getattr(before, s) is not None}
    if not before.unknown:
        assert before == after


def test_verdicts_say_which_rule_decided(snapshot, now):
    decide = Decider(Guards().denials, [IdlePolicy()])

    def first(**changes):
        by = dict.fromkeys(changes, "group staff")
        found = decide(snapshot(terms=SessionPolicy(**changes, by=by)), now)
        return found[0].reclaim, found[0].message

    rule, as_idle = "by the rule for group staff", "counts as idle"
    assert first() == (True, "Idle for 30 min (counts as idle after 15 min).")
    assert (
        first(idle_after=1200.0)[1]
        == f"Idle for 30 min (counts as idle after 20 min {rule})."
    )
    assert first(idle_after=2000.0) == (
        False,
        f"Last used 30 min ago (kernel train.ipynb); {as_idle} after 33 min {rule}.",
    )
    assert first(idle_after=0.0) == (
        False,
        f"Idle sessions are not suspended automatically here {rule}.",
    )
    never = "Never suspended automatically (rule for group staff)."
    assert first(never=True) == (False, never)
    assert first(never=False)[0]
    assert first(quiet_hours=["22:00-23:00"]) == (
        False,
        f"No session is suspended between 22:00 and 23:00 UTC {rule}.",
    )
    assert first(min_age=9000.0)[1] == (
        f"Started 2 h ago; sessions are left alone for 2 h 30 min {rule}."
    )
    busy = decide(snapshot(terms=SessionPolicy(unknown="its user's groups")), now)
    assert (busy[0].reclaim, busy[0].code) == (False, "rules_unknown")


@pytest.mark.parametrize(
    ("usage", "setting", "higher", "lower", "words"),
    [
        (
            {"cpu_percent": 30.0},
            "busy_cpu_percent",
            40,
            5,
            "more than 5 % counts as work",
        ),
        ({"gpu_peak_percent": 9.0}, "busy_gpu_percent", None, 1, "1 % counts as work"),
        ({"data_rate": 3e4}, "busy_data_rate", None, 5000, "5.0 kB counts as work"),
        ({"page_peak_rate": 300.0}, "page_data_rate", None, 100, "100 B counts as use"),
        (
            {"prompt_kernel": "a", "prompt_since": 1_700_000_000.0 - 4000},
            "prompt_idle_after",
            60,
            7200,
            "counts as idle after 2 h",
        ),
        ({"outside": ["10.1.2.3:22"]}, "connections_after", 0, 7200, "while they are"),
        ({"connections": 1}, "connected_is_active", False, True, "connections: 1"),
    ],
)
def test_rule_says_what_counts_as_use_and_work(
    snapshot, now, usage, setting, higher, lower, words
):
    def first(value):
        found = terms({"group": "staff", setting: value})
        return IdlePolicy().reasons(snapshot(usage, terms=found), now)[0]

    assert first(higher).reclaim
    verdict = first(lower)
    assert not verdict.reclaim
    assert words in verdict.message
    assert "by the rule for group staff" in verdict.message


def test_rule_that_lets_questions_count_for_ever_survives_its_way_to_the_pages():
    found = terms({"group": "staff", "prompt_idle_after": None})
    assert found.by == {"prompt_idle_after": "group staff"}
    again = msgspec.json.decode(msgspec.json.encode(found), type=SessionPolicy)
    assert again == found


def test_rules_come_through_the_command_line_that_configure_writes():
    rules = [{"group": "course-101", "idle_after": 3600}, {"user": "*", "never": True}]
    for words in ([f"--Rules.rules={rules}"], [f"--Rules.rules={r}" for r in rules]):
        app = Application()
        app.classes = [Rules]
        app.parse_command_line(words)
        assert Rules(parent=app).rules == rules
    app.parse_command_line(["--Rules.rules=[{'user': 'ada'"])
    with pytest.raises(TraitError, match="rules"):
        Rules(parent=app)
