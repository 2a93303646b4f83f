"""Requirements of a checkpoint for its next place: GPUs, rights, processor, image.

A capture stores :class:`HostRequirements` as ``world.json``; a restore compares it
before anything is touched. The functions report differences, each with a reason, and do
not decide what follows. Nothing is changed, and the GPU driver is not asked.

CRIU gives a process back its user, capabilities and system call filter, whatever the
new container was given. So the rights are compared as well: a user who may choose the
next container's rights (a profile, another server) must not keep those of the last one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.files.open_files import FileFingerprint  # noqa: TC001 likewise
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.bounds import Count, Size, UserId
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import GpuSample, Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.linux import capabilities, procfs
from jupyterhub_gpu_reclaim.linux.processes import DEAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.linux.processes import Process
    from jupyterhub_gpu_reclaim.node.session import Session


class GpuCard(Value, frozen=True, kw_only=True):
    uuid: str  #: 32 hexadecimal digits
    name: str


class GpuUse(Value, frozen=True, kw_only=True):
    """Memory that a process had on a card; the pid is in the session's namespace."""

    pid: Count
    uuid: str
    bytes: Size


class Gpus(Value, frozen=True, kw_only=True):
    """A session's GPUs at its capture: the processes that the driver emptied."""

    driver: str
    #: all that it could see: the driver wants each named when they change
    cards: list[GpuCard]
    users: list[int]  #: pids in the session's namespace
    uses: list[GpuUse]

    def bytes(self) -> int:
        """GPU memory in total: about what its processes hold when it was moved out."""
        return sum(use.bytes for use in self.uses)

    def only(self, pids: Collection[int]) -> Gpus:
        return Gpus(
            driver=self.driver,
            cards=self.cards,
            users=[pid for pid in self.users if pid in pids],
            uses=[use for use in self.uses if use.pid in pids],
        )

    def joined(self, other: Gpus | None) -> Gpus:
        if other is None:
            return self
        known = {card.uuid for card in self.cards}
        return Gpus(
            driver=self.driver,
            cards=[*self.cards, *(c for c in other.cards if c.uuid not in known)],
            users=sorted({*self.users, *other.users}),
            uses=[*self.uses, *other.uses],
        )

    def needed(self, pids: Collection[int]) -> dict[str, int]:
        total: Counter[str] = Counter()
        for use in self.uses:
            if use.pid in pids:
                total[use.uuid] += use.bytes
        return dict(total)

    def held(self) -> list[GpuSample]:
        """The cards on which its processes had memory, with how much."""
        needed = self.needed(self.users)
        return [
            GpuSample(uuid=card.uuid, name=card.name, memory=needed[card.uuid])
            for card in self.cards
            if card.uuid in needed
        ]


def compare_gpus(
    there: Gpus, driver: str, here: Sequence[GpuCard], free: Mapping[str, int | None]
) -> Iterator[Finding]:
    """Why a session's GPUs cannot be filled here; ``free``: bytes, None: unknown."""
    moves = plan_moves(there.cards, here, free)
    if moves is None:
        yield finding(
            Reason.GPU_MISMATCH,
            needed=_card_names(there.cards),
            here="there is " + (_card_names(here) or "no GPU"),
        )
        return
    if there.driver != driver:
        yield finding(Reason.GPU_DRIVER_MISMATCH, there=there.driver, here=driver)
    names = {card.uuid: card.name for card in here}
    for old, needed in sorted(there.needed(there.users).items()):
        new = moves.get(old, old)
        room = free.get(new)
        if room is not None and room < needed:
            yield finding(
                Reason.GPU_MEMORY,
                card=names.get(new, new),
                needed=size(needed),
                free=size(room),
            )


def plan_moves(
    there: Sequence[GpuCard],
    here: Sequence[GpuCard],
    free: Mapping[str, int | None],
) -> dict[str, str] | None:
    """Map each card to its replacement; None if there are not enough of a kind."""
    # A card still there keeps its place; others go where most room is, to the same
    # model: the driver copies memory as it is.
    left = {card.uuid: card for card in here}
    moves = {}
    for card in there:
        same = left.get(card.uuid)
        if same is not None and same.name == card.name:
            moves[card.uuid] = left.pop(card.uuid).uuid
    for card in there:
        if card.uuid in moves:
            continue
        fitting = [other for other in left.values() if other.name == card.name]
        if not fitting:
            return None
        chosen = max(fitting, key=lambda other: (free.get(other.uuid) or 0, other.uuid))
        moves[card.uuid] = left.pop(chosen.uuid).uuid
    return moves


def move_pairs(moves: Mapping[str, str]) -> list[tuple[str, str]]:
    """The moves as the driver takes them: every card, or none if all stay."""
    if all(old == new for old, new in moves.items()):
        return []
    return list(moves.items())


def _card_names(cards: Sequence[GpuCard]) -> str:
    counted = Counter(card.name for card in cards)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counted.items()))


_ROOT = 0
#: With these a program of a container could look at CRIU or at us, where the kernel
#: compares capability sets otherwise, or reaches the host by itself.
REACHING = (
    *("DAC_READ_SEARCH", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "SYS_ADMIN"),
    *("SYS_BOOT", "PERFMON", "BPF"),
)


class Rights(Value, frozen=True, kw_only=True):
    """The combined rights of some processes."""

    uids: list[int]
    capabilities: int  #: bits of all that one has, or could get by running a program
    held: int = 0  #: those that one has already
    filtered: bool  #: every one has a seccomp filter
    no_new_privileges: bool  #: no program can raise its rights


def rights_of(processes: Iterable[Process]) -> Rights:
    """The combined rights of those processes; dead ones have none."""
    uids: set[int] = set()
    bounding, held, filtered, no_new = 0, 0, True, True
    for process in processes:
        status = procfs.status(process.pid)
        if process.state in DEAD or not status:
            continue
        uids.update(int(uid) for uid in status["Uid"].split())
        bounding |= int(status["CapBnd"], 16)
        held |= int(status["CapPrm"], 16)
        filtered &= status.get("Seccomp", "0") != "0"
        no_new &= status.get("NoNewPrivs", "0") == "1"
    return Rights(
        uids=sorted(uids),
        capabilities=bounding | held,
        held=held,
        filtered=filtered,
        no_new_privileges=no_new,
    )


def refuse_user_namespace(init: Process) -> Iterator[Finding]:
    """Refuse a restore under an init that is root in its own user namespace only."""
    # CRIU would make processes there that are root outside of it.
    if procfs.link(init.pid, "ns/user") != procfs.link(os.getpid(), "ns/user"):
        yield finding(Reason.FOREIGN_NAMESPACE, kind="user", **init.facts)


def compare_rights(there: Rights, here: Rights) -> Iterator[Finding]:
    """Why a session of those rights must not come back to that place. Pure."""
    # ``here``: the holding init's.
    if _ROOT not in here.uids and (strangers := set(there.uids) - set(here.uids)):
        yield finding(Reason.USER_MISMATCH, there=min(strangers), here=here.uids[0])
    if there.capabilities & ~here.capabilities:
        extra = capabilities.names(there.capabilities & ~here.capabilities)
        yield finding(Reason.RIGHTS_MISMATCH, what=", ".join(extra))
    if here.filtered and not there.filtered:
        yield finding(Reason.RIGHTS_MISMATCH, what="programs without a seccomp filter")
    if here.no_new_privileges and not there.no_new_privileges:
        yield finding(Reason.RIGHTS_MISMATCH, what="programs that may gain privileges")


def refuse_reaching(
    rights: Rights, session: Session, trusted: Collection[str]
) -> Iterator[Finding]:
    """Why CRIU must not enter a container whose programs could reach it. Pure."""
    # Docker's default capabilities do not suffice for that. Sessions on the machine
    # are not judged: root is root there. Trusted ones, without ``CAP_``, are allowed.
    if not (session.container or session.hint.pod):
        return
    # A program that can gain nothing by running another has what it holds.
    bounded = rights.no_new_privileges and _ROOT not in rights.uids
    may = rights.held if bounded else rights.capabilities
    for one in REACHING:
        if one not in trusted and may >> capabilities.NAMES.index(one) & 1:
            yield finding(Reason.DANGEROUS_RIGHTS, capability=f"CAP_{one}")


#: Flags of /proc/cpuinfo on x86 that stand for instructions a program may have chosen.
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|aes|vaes|sha|pclmulqdq|vpclmulqdq|popcnt|abm|adx"
    r"|movbe|movdir|rdrand|rdseed|gfni|lahf_lm|cx16|xsave|clflushopt|clwb|fsrm|erms)"
)


class Machine(Value, frozen=True, kw_only=True):
    """A machine, as far as a saved program notices."""

    architecture: str
    kernel: str
    cpu_flags: list[str]

    def numbers(self) -> tuple[int, int]:
        found = re.match(r"(\d+)\.(\d+)", self.kernel)
        return (int(found[1]), int(found[2])) if found else (0, 0)


class HostRequirements(Value, frozen=True, kw_only=True):
    """Facts that a session was built on at its capture; pids are of its namespace."""

    version: int = codec.VERSION
    machine: Machine
    root: Count
    server: Count
    uid: UserId
    pids: list[Count]
    stopped: list[Count] = msgspec.field(default_factory=list)
    #: inodes of sockets closed: led outside, or ended with something unread
    cut: list[int] = msgspec.field(default_factory=list)
    files: list[FileFingerprint] = msgspec.field(default_factory=list)
    #: the private file systems by their folder
    archives: list[str] = msgspec.field(default_factory=list)
    kernels: list[str] = msgspec.field(default_factory=list)
    terminals: list[str] = msgspec.field(default_factory=list)
    memory: Size = 0  #: bytes, with that of its GPUs
    gpus: Gpus | None = None
    image: str = ""
    #: the service's own
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    rights: Rights
    #: those that its container gave its init, whose own comes first
    given_groups: list[UserId] = msgspec.field(default_factory=list)
    shares_network: bool = False  #: it lived in the agent's own network


def this_machine() -> Machine:
    name = os.uname()
    return Machine(
        architecture=name.machine,
        kernel=name.release,
        cpu_flags=instructions(Path("/proc/cpuinfo").read_text()),
    )


def instructions(cpuinfo: str) -> list[str]:
    """Instructions that a program may have chosen, by ``/proc/cpuinfo``. Pure."""
    # The list has bugs and inventions of the kernel, too.
    flags = procfs.fields(cpuinfo).get("flags\t\t", "")
    return sorted(filter(_INSTRUCTIONS.match, flags.split()))


def compare_images(there: str, here: str) -> Iterator[Finding]:
    """Why a root file system saved over one image does not fit another. Pure."""
    # ``repository@sha256:…``, or the digest; unknown at the capture: not compared.
    digests = [name.rpartition("@")[2] for name in (there, here)]
    if there and digests[0] != digests[1]:
        yield finding(Reason.IMAGE_MISMATCH, there=there, here=here or "not known")


def compare_machines(there: Machine, here: Machine) -> Iterator[Finding]:
    """Why programs of that machine could not continue here. Pure."""
    missing = sorted(set(there.cpu_flags) - set(here.cpu_flags))
    if there.architecture != here.architecture:
        missing = [f"the {there.architecture} instruction set"]
    if missing:
        yield finding(Reason.CPU_MISMATCH, features=", ".join(missing))
    if here.numbers() < there.numbers():
        yield finding(Reason.KERNEL_TOO_OLD, here=here.kernel, there=there.kernel)
