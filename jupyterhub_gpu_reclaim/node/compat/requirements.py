"""Describes what a checkpoint requires of the place where it is restored.

The capture stores this as ``world.json``; the restore compares it before anything is
touched. It only reports what differs, with the reason and the name of the file, port or
processor feature; it does not decide what follows from that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.checkpoint.files.open_files import Opened  # noqa: TC001 likewise
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.compat.gpu import Gpus  # noqa: TC001 msgspec reads it
from jupyterhub_gpu_reclaim.node.compat.rights import Rights  # noqa: TC001 likewise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import Finding

#: Flags of /proc/cpuinfo that stand for instructions a program may have chosen.
_INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|amx|fma|f16c|bmi|aes|vaes|sha|pclmulqdq|vpclmulqdq|popcnt|abm|adx"
    r"|movbe|movdir|rdrand|rdseed|gfni|lahf_lm|cx16|xsave|clflushopt|clwb|fsrm|erms"
    r"|asimd|sve|sme|atomics|crc32|dotprod|i8mm|bf16|fphp)"
)


class Machine(Value, frozen=True, kw_only=True):
    """A machine, as far as a saved program notices."""

    architecture: str
    kernel: str
    cpu_flags: list[str]

    def numbers(self) -> tuple[int, int]:
        """Major and minor version of its Linux."""
        found = re.match(r"(\d+)\.(\d+)", self.kernel)
        return (int(found[1]), int(found[2])) if found else (0, 0)


class World(Value, frozen=True, kw_only=True):
    """What a session was built on at its capture.

    Process ids are those of the session's own pid namespace; ``cut`` are the inodes
    of the sockets that were closed because they led outside, or whose connection had
    ended with something unread; ``archives`` are the private file systems by their
    folder; ``kernels`` and ``terminals`` are what its server had open; ``memory`` is
    what it held, in bytes, with that of its ``gpus``; ``image`` is that of its
    container, ``node_labels`` are the service's own.
    """

    format: int = 1
    machine: Machine
    criu: str
    root: int
    server: int
    uid: int
    pids: list[int]
    stopped: list[int] = msgspec.field(default_factory=list)
    cut: list[int] = msgspec.field(default_factory=list)
    pipes: list[str] = msgspec.field(default_factory=list)
    files: list[Opened] = msgspec.field(default_factory=list)
    archives: list[str] = msgspec.field(default_factory=list)
    kernels: list[str] = msgspec.field(default_factory=list)
    terminals: list[str] = msgspec.field(default_factory=list)
    memory: int = 0
    gpus: Gpus | None = None
    image: str = ""
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    rights: Rights | None = None


def this_machine() -> Machine:
    """The machine that we run on."""
    name = os.uname()
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        label, _, value = line.partition(":")
        if label.strip() in {"flags", "Features"}:
            flags = {flag for flag in value.split() if _INSTRUCTIONS.match(flag)}
            break
    return Machine(
        architecture=name.machine, kernel=name.release, cpu_flags=sorted(flags)
    )


def compare_images(there: str, here: str) -> Iterator[Finding]:
    """Why a root file system saved over one image does not fit another. Pure.

    Both as the kubelet names them: ``repository@sha256:…``, or the digest alone. What
    was not told at the capture cannot be compared.
    """
    digests = [name.rpartition("@")[2] for name in (there, here)]
    if there and digests[0] != digests[1]:
        yield finding(Reason.IMAGE_MISMATCH, there=there, here=here or "not known")


def compare_machines(there: Machine, here: Machine) -> Iterator[Finding]:
    """Why programs of that machine could not go on here. Pure."""
    missing = sorted(set(there.cpu_flags) - set(here.cpu_flags))
    if there.architecture != here.architecture:
        missing = [f"the {there.architecture} instruction set"]
    if missing:
        yield finding(Reason.CPU_MISMATCH, features=", ".join(missing))
    if here.numbers() < there.numbers():
        yield finding(Reason.KERNEL_TOO_OLD, here=here.kernel, there=there.kernel)
