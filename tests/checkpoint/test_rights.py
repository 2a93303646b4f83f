"""The one rule of what a thread's rights may be after a return (its table)."""

import os

import pytest

from jupyterhub_gpu_reclaim.checkpoint.kinds import attributes
from jupyterhub_gpu_reclaim.checkpoint.kinds.attributes import (
    Attributes,
    ThreadAttributes,
)
from jupyterhub_gpu_reclaim.checkpoint.kinds.rights import (
    differences,
    given_by,
    inherited_within,
)
from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
from jupyterhub_gpu_reclaim.linux import procfs
from tests.hostile.test_rights_taken_away import core, tree

#: A program of an ordinary user, of one that was given 1, of root, of a bounded root.
USER = {"Uid": "7 7 7 7", "CapBnd": "ff", "CapInh": "6", "NoNewPrivs": "0"}
USER |= {"CapPrm": "0", "CapEff": "0", "CapAmb": "0"}
USER |= {"Seccomp": "2", "Seccomp_filters": "2"}
GIVEN = {**USER, "CapPrm": "1", "CapEff": "1", "CapAmb": "1", "CapInh": "7"}
ROOT = {**USER, "Uid": "0 0 0 0", "CapPrm": "f", "CapEff": "f"}
BOUNDED = {**ROOT, "NoNewPrivs": "1"}


@pytest.mark.parametrize(
    ("before", "change", "wrong"),
    [
        *[(one, {}, []) for one in (USER, GIVEN, ROOT, BOUNDED)],
        # A bounding set may be less, but for what is held.
        (USER, {"CapBnd": "0"}, []),
        (GIVEN, {"CapBnd": "1"}, []),
        (GIVEN, {"CapBnd": "fe"}, [("CapBnd", 1)]),
        (ROOT, {"CapBnd": "7f"}, [("CapBnd", 0x80)]),
        (BOUNDED, {"CapBnd": "f"}, []),
        (BOUNDED, {"CapBnd": "e"}, [("CapBnd", 1)]),
        # So may what is inheritable.
        (USER, {"CapInh": "0"}, []),
        (GIVEN, {"CapInh": "1"}, []),
        (GIVEN, {"CapInh": "6"}, [("CapInh", 1)]),
        (ROOT, {"CapInh": "4"}, [("CapInh", 2)]),
        # What is held may not.
        (GIVEN, {"CapPrm": "0", "CapEff": "0"}, [("CapPrm", 1), ("CapEff", 1)]),
        (GIVEN, {"CapAmb": "0"}, [("CapAmb", 1)]),
        (ROOT, {"CapEff": "7"}, [("CapEff", 8)]),
        # Nothing may be more.
        (USER, {"CapBnd": "1ff"}, [("CapBnd", 0x100)]),
        (USER, {"CapInh": "e"}, [("CapInh", 8)]),
        (USER, {"CapPrm": "1"}, [("CapPrm", 1)]),
        (USER, {"CapEff": "1"}, [("CapEff", 1)]),
        (USER, {"CapAmb": "1"}, [("CapAmb", 1)]),
        # The rest is equal.
        (USER, {"NoNewPrivs": "1"}, [("NoNewPrivs", 0)]),
        (BOUNDED, {"NoNewPrivs": "0"}, [("NoNewPrivs", 0)]),
        (USER, {"Seccomp": "0"}, [("Seccomp", 0)]),
        (USER, {"Seccomp_filters": "1"}, [("Seccomp_filters", 0)]),
        (USER, {"Seccomp_filters": "3"}, [("Seccomp_filters", 0)]),
    ],
)
def test_differences_are_those_of_the_table(before, change, wrong):
    assert list(differences(before, {**before, **change})) == wrong


AGENT = {"CapPrm": "1ff", "CapBnd": "1ff", "NoNewPrivs": "0", "Seccomp": "0"}


@pytest.mark.parametrize(
    ("agent", "before", "lacks"),
    [
        *[({}, one, []) for one in (USER, GIVEN, ROOT, BOUNDED)],
        ({"CapPrm": "6", "CapBnd": "6"}, USER, []),
        ({"CapPrm": "e", "CapBnd": "e"}, BOUNDED, ["CapPrm", "CapEff", "CapBnd"]),
        ({"CapPrm": "f", "CapBnd": "f"}, BOUNDED, []),
        ({"CapPrm": "f", "CapBnd": "f"}, ROOT, ["CapBnd"]),
        ({"NoNewPrivs": "1"}, USER, ["NoNewPrivs"]),
        ({"NoNewPrivs": "1"}, BOUNDED, []),
        ({"Seccomp": "2", "Seccomp_filters": "1"}, USER, ["Seccomp_filters"]),
        ({"Seccomp": "2"}, {**USER, "Seccomp": "0"}, ["Seccomp", "Seccomp_filters"]),
    ],
)
def test_agent_that_cannot_give_something_back_is_seen_before(agent, before, lacks):
    after = given_by({**AGENT, **agent}, before)
    assert [name for name, _ in differences(before, after)] == lacks


def test_saved_rights_beyond_the_agents_name_the_agent_and_the_user():
    mine = int(procfs.status(os.getpid())["CapPrm"], 16)
    held = f"{mine | 1 << 62:x}"
    status = procfs.status(os.getpid()) | {"CapPrm": held, "CapBnd": held}
    thread = ThreadAttributes(given_back={**status, "Uid": "1234567 0 0 0"})
    saved = {300: Attributes(threads={300: thread, 301: thread})}
    (found,) = attributes.refuse_beyond_agent(saved)
    assert (found.code, found.fatal) == ("capability_missing", True)
    assert "lacks capability 62" in found.message
    assert "user 1234567" in found.message


def test_what_the_agent_lacks_is_not_inheritable_of_what_comes_back():
    """The kernel would refuse it to CRIU."""
    made = tree(one=core(cap_inh=[6, 1]), other=core(cap_inh=[2, 0]), none=core())
    saved = SavedImages(None, made)
    inherited_within(saved, 2)
    written = [
        one.thread_core.creds.cap_inh for _, cores in saved.cores() for one in cores
    ]
    assert [*map(list, written)] == [[2, 0], [2, 0], []]
    saved = SavedImages(None, made)
    inherited_within(saved, 6 | 1 << 32)
    assert next(saved.cores())[1][0].thread_core.creds.cap_inh == [6, 1]
