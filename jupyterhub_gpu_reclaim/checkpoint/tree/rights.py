"""Rights that a thread may have after a return, by those that it had before.

All words are those of ``/proc/PID/status``. A right that a thread *holds* is in its
permitted capabilities or, where it is root's and may gain privileges, in its bounding
set: each program that it starts has it. What else is in a bounding set it may gain only
by a program of another user, such as ``sudo``.

| right                             | may be less            | may be more |
|-----------------------------------|------------------------|-------------|
| ``CapPrm``, ``CapEff``, ``CapAmb`` | no                     | no          |
| ``CapBnd``                        | by what is not held    | no          |
| ``CapInh``                        | by what is not held    | no          |
| ``NoNewPrivs``, ``Seccomp``, ``Seccomp_filters`` | no      | no          |

CRIU makes a thread as a child of the agent: it can take anything away, and give nothing
that the agent lacks (:func:`given_by`). So the preflight asks what would be missing of
each process, and a rehearsal or a return what is missing. What its user has lost
meanwhile is no longer in what a thread is compared with (``taken_away``): where that is
``sudo``, it comes back with ``NoNewPrivs``.
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, procfs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jupyterhub_gpu_reclaim.common.models import Finding

_HELD_ONLY: Final = ("CapPrm", "CapEff", "CapAmb")
_LIMITS: Final = ("CapBnd", "CapInh")
_CAPABILITIES: Final = (*_HELD_ONLY, *_LIMITS)
_SWITCHES: Final = ("NoNewPrivs", "Seccomp", "Seccomp_filters")
#: What is read of a thread to be judged.
FIELDS: Final = frozenset({"Uid", *_CAPABILITIES, *_SWITCHES})
#: What an agent lacks that cannot give these, in the words of its unit.
_OF_THE_UNIT: Final = {
    "NoNewPrivs": "NoNewPrivileges=no",
    "Seccomp": "a life without a seccomp filter",
    "Seccomp_filters": "a life without a seccomp filter",
}


def differences(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """What is not as it may be, by the table above. Pure.

    Args:
        before: of the thread that was saved.
        after: of the one that came back, or would.

    Yields:
        the name of each, with the capabilities in question; 0 for what is none.
    """
    held = _held(before)
    for name in _CAPABILITIES:
        was, now = _bits(before, name), _bits(after, name)
        needed = was & held if name in _LIMITS else was
        if wrong := needed & ~now | now & ~was:
            yield name, wrong
    for name in _SWITCHES:
        if before.get(name, "0") != after.get(name, "0"):
            yield name, 0


def given_by(agent: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The most that an agent of those rights can give a thread of these. Pure."""
    has, may = _bits(agent, "CapPrm"), _bits(agent, "CapBnd")
    after = dict(before)
    for name in _CAPABILITIES:
        most = may if name == "CapBnd" else has
        after[name] = f"{_bits(before, name) & most:016x}"
    if agent.get("NoNewPrivs") == "1":
        after["NoNewPrivs"] = "1"
    if agent.get("Seccomp", "0") != "0":
        after["Seccomp"] = agent["Seccomp"]
        own, more = before.get("Seccomp_filters", "0"), agent.get("Seccomp_filters")
        after["Seccomp_filters"] = str(int(own) + int(more or "1"))
    return after


def refuse_beyond_agent(before: Mapping[str, str]) -> Iterator[Finding]:
    """Why we could not give a thread its rights back: we lack them ourselves."""
    after = given_by(procfs.status(os.getpid()), before)
    for name, lacks in differences(before, after):
        for one in capabilities.names(lacks) or [_OF_THE_UNIT[name]]:
            user = user_name(int(before["Uid"].split()[0]))
            yield finding(Reason.CAPABILITY_MISSING, capability=one, user=user)


def user_name(uid: int) -> str:
    """A user as the machine knows it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _held(status: Mapping[str, str]) -> int:
    held = _bits(status, "CapPrm")
    if "0" in status.get("Uid", "").split() and status.get("NoNewPrivs") != "1":
        held |= _bits(status, "CapBnd")
    return held


def _bits(status: Mapping[str, str], name: str) -> int:
    return int(status.get(name, "0"), 16)
