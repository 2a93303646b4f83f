"""Gives back the ports that an agent of before 2026-12 reserved in the kernel's list.

It put them into ``net.ipv4.ip_local_reserved_ports``, without a bound, and did so again
after a reboot. They are held by sockets now (``held``). What an administrator had
reserved stays there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSCTL: Final = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LIST_BYTES: Final = 1 << 20  # more than every port, written singly


class _Record(Value, frozen=True, kw_only=True):
    """Contents of the former agent's file."""

    version: int
    boot: str = ""
    #: checkpoint → ports
    reserved: dict[str, list[int]] = msgspec.field(default_factory=dict)
    #: of those, what was in the kernel's list before
    foreign: list[int] = msgspec.field(default_factory=list)


def give_back(path: Path, sysctl: Path = SYSCTL) -> list[str]:
    """Take what that file has reserved out of the kernel's list. Idempotent.

    Returns:
        The checkpoints that it was reserved for; empty for a file of today.
    """
    try:
        record = codec.decode(path.read_bytes(), _Record)
    except (OSError, BadRequest):
        return []
    if record.version != 1:
        return []
    ours = {port for ports in record.reserved.values() for port in ports}
    if record.boot == _BOOT_ID.read_text().strip():
        with contextlib.suppress(OSError, ValueError):
            now = read_list(sysctl)
            left = now - (ours - set(record.foreign))
            if left != now:
                _write(sysctl, left)
    return sorted(record.reserved)


def read_list(path: Path = SYSCTL) -> set[int]:
    """The kernel's list as it is now.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such list.
    """
    with path.open("rb", buffering=0) as file:
        # The kernel answers one read only, and cuts what does not fit.
        line = (file.read(_LIST_BYTES) or b"").decode("ascii")
    ports: set[int] = set()
    for part in filter(None, line.strip().split(",")):
        first, dash, last = part.partition("-")
        ports.update(range(int(first), int(last if dash else first) + 1))
    return ports


def _write(path: Path, ports: Iterable[int]) -> None:
    # An empty line empties the list; the kernel takes a page at a time.
    data = (",".join(map(str, sorted(ports))) + "\n").encode()
    with path.open("wb", buffering=0) as file:
        while data:
            data = data[file.write(data) or len(data) :]
