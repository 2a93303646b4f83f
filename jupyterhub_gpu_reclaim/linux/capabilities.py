"""Root's capabilities: their names, those that the agent needs, and those that it has.

On a machine of its own an agent has them all; in a cluster a manifest lists them by
name, and CRIU does not say which one is missing: it stops in the middle of a restore,
or waits for ever. The needed set was measured (``docs/explanation/trust.md``).
CAP_SYS_RESOURCE, which root's sessions can do without, is judged for each session
(``checkpoint.preflight``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyterhub_gpu_reclaim.common.models import Finding

#: In the order of their numbers (linux/capability.h).
NAMES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL"),
    *("SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE"),
    *("NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE"),
    *("SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT"),
    *("SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE"),
    *("AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN"),
    *("SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)
#: Without these nothing, or not every session, can be saved and brought back.
NEEDED: Final = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID"),
    *("SETUID", "SETPCAP", "NET_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "SYS_ADMIN"),
    "SYS_TIME",
)


def own() -> int:
    return int(procfs.status(os.getpid()).get("CapEff", "0"), 16)


def has(capability: str) -> bool:
    """Whether this process has a capability, by its name without ``CAP_``."""
    return bool(own() & _bits([capability]))


def names(bits: int) -> list[str]:
    """Names of capabilities, e.g. ``CAP_SYS_ADMIN``; numbers of those too new."""
    known = dict(enumerate(f"CAP_{name}" for name in NAMES))
    numbers = [n for n in range(bits.bit_length()) if bits >> n & 1]
    return [known.get(n, f"capability {n}") for n in numbers]


def missing(needed: int, has: int) -> Iterator[Finding]:
    for one in names(needed & ~has):
        yield finding(Reason.CAPABILITY_MISSING, capability=one, user="any user")


def findings() -> Iterator[Finding]:
    """The capabilities that the agent lacks to do anything at all."""
    yield from missing(_bits(NEEDED), own())


def _bits(some: Iterable[str]) -> int:
    return sum(1 << NAMES.index(one) for one in some)
