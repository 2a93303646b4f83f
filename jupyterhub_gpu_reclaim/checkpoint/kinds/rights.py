"""Rights of threads: ids, capabilities and limits.

What a thread may have after a return, by what it had before (words of
``/proc/PID/status``). A right that a thread *holds* is in its permitted capabilities
or, where it is root's and may gain privileges, in its bounding set: each program that
it starts has it. What else is in a bounding set it may gain only by a program of
another user, such as ``sudo``.

| right                              | may be less          | may be more |
|------------------------------------|----------------------|-------------|
| ``CapPrm``, ``CapEff``, ``CapAmb`` | no                   | no          |
| ``CapBnd``, ``CapInh``             | by what is not held  | no          |
| ``NoNewPrivs``, ``Seccomp*``       | no                   | no          |
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, RestoreFailed
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import capabilities, procfs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Dump, Return, Session
    from jupyterhub_gpu_reclaim.checkpoint.saved_images import SavedImages
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


class Rights(Kind):
    """Ids, capabilities and other rights of threads.

    A tree has neither more of them afterwards, nor less than it relies on. CRIU makes a
    thread as a child of the agent: it can take anything away, and give nothing that the
    agent lacks. So the preflight asks what would be missing of each process, and a
    rehearsal or a return what is missing (``attributes``). What its user has lost
    meanwhile is taken out before (``tree.taken_away``).
    """

    def preflight(self, seen: Session) -> Iterator[Finding]:
        can = capabilities.has("SYS_RESOURCE")
        for one in seen.programs:
            # CRIU asks for the limits of each process (prlimit(2)).
            words = [one.status.get(kind, "").split()[:3] for kind in ("Uid", "Gid")]
            if not can and not {number for ids in words for number in ids} <= {"0"}:
                capability, user = "CAP_SYS_RESOURCE", user_name(one.process.uid)
                yield finding(
                    Reason.CAPABILITY_MISSING, capability=capability, user=user
                )
            # In a user namespace of its own it holds everything, and nothing outside.
            if one.status and not has_own_users(one.pid):
                yield from refuse_beyond_agent(one.status)

    def save(self, dump: Dump) -> None:
        # CRIU (4.2: parasite_dump_creds) does not ask the kernel for a task's users,
        # groups and capabilities. It has the task itself ask, by code that it puts into
        # the task's memory, and believes the answer: as root, it later makes a task
        # with just these rights. A user with write access to that memory, such as by a
        # login beside the session, could so have the session come back as root.
        every = (status for one in dump.programs for status in one.threads.values())
        known = {procfs.inner_id(status): status for status in every}
        for number in sorted(_saved_threads(dump.images)):
            saved = _rights_in(dump.images, number)
            now = _rights_now(known.get(number, {}))
            if saved is not None and saved != now:
                why = f"process {number} would come back with other rights than it has"
                detail = f"saved {saved}, has {now}"
                raise ReclaimError(Reason.CAPTURE_FAILED, why=why, detail=detail)

    def rewrite(self, back: Return) -> None:
        inherited_within(back.images, capabilities.own())


def inherited_within(saved: SavedImages, most: int) -> None:
    """Have no thread inherit more than that set.

    The kernel lets CRIU give a thread nothing else (capset(2)). An inheritable
    capability is no right of a program: systemd leaves some to all of a unit.
    """
    for _, cores in saved.cores():
        for core in cores:
            creds = core.thread_core.creds
            words = [word & most >> 32 * n for n, word in enumerate(creds.cap_inh)]
            if words != list(creds.cap_inh):
                creds.cap_inh[:] = words


def has_own_users(pid: int) -> bool:
    ours = procfs.link(os.getpid(), "ns/user")
    return procfs.link(pid, "ns/user") not in {"", ours}


def differences(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """What is not as it may be, by the table above. Pure.

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


#: Bits of prctl(2)'s securebits that would let a program without capabilities keep what
#: it gets by a set-user-ID program: KEEP_CAPS, NO_SETUID_FIXUP and their locks. The
#: kernel tells a task's bits only to the task itself.
_KEEPING: Final = 0x3C
_SAVED: Final = {
    "CapInh": "cap_inh",
    "CapPrm": "cap_prm",
    "CapEff": "cap_eff",
    "CapBnd": "cap_bnd",
    "CapAmb": "cap_amb",
}


#: Of a thread: users and groups (real, effective, saved, for file systems), groups,
#: capabilities, whether it may gain no more, and whether it keeps what it gains.
_ThreadRights = tuple[list[int], list[int], list[int], list[int], bool, bool]


def _saved_threads(saved: SavedImages) -> Iterator[int]:
    for name in saved.names():
        number = name.removeprefix("core-").removesuffix(".img")
        if name == f"core-{number}.img" and number.isdecimal():
            yield int(number)


def _rights_in(saved: SavedImages, number: int) -> _ThreadRights | None:
    try:
        entry = saved.core(number)
    except RestoreFailed as error:
        why = "CRIU has written an image that is off"
        raise ReclaimError(Reason.CAPTURE_FAILED, why=why, detail=str(error)) from error
    if not entry.thread_core.HasField("creds"):
        return None
    one: Any = entry.thread_core.creds
    return (
        [one.uid, one.euid, one.suid, one.fsuid],
        [one.gid, one.egid, one.sgid, one.fsgid],
        sorted(one.groups),
        [_number(getattr(one, name)) for name in _SAVED.values()],
        bool(one.no_new_privs),
        bool(one.secbits & _KEEPING) and not _number(one.cap_prm),
    )


def _rights_now(fields: dict[str, str]) -> _ThreadRights | None:
    if "Uid" not in fields:
        return None
    uids, gids, groups = (
        [int(word) for word in fields[name].split()]
        for name in ("Uid", "Gid", "Groups")
    )
    known = [int(fields[name], 16) for name in _SAVED]
    return uids, gids, sorted(groups), known, fields["NoNewPrivs"] == "1", False


def _number(words: list[int]) -> int:
    return sum(word << 32 * number for number, word in enumerate(words))
