"""Descriptors that systemd keeps for a service across a restart.

The unit needs ``FileDescriptorStoreMax=`` (sd_notify(3), "FDSTORE=1"). Elsewhere
nothing is kept, and nothing fails. systemd hands all of them over at the next start,
with their names in one environment variable, which holds 128 KiB: so names are short.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST: Final = 3  # SD_LISTEN_FDS_START
_AT_ONCE: Final = 200  # the kernel takes 253 with a message

_log = logging.getLogger(__name__)


def received() -> list[tuple[str, int]]:
    """Take what systemd has kept: (name, descriptor), for the caller to close; once."""
    words = [os.environ.pop(f"LISTEN_{one}", "") for one in ("PID", "FDS", "FDNAMES")]
    pid, count, names = words
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    numbers = range(_FIRST, _FIRST + int(count))
    for number in numbers:
        os.set_inheritable(number, False)
    return list(zip(names.split(":"), numbers, strict=False))


def keep(name: str, descriptors: Sequence[int]) -> None:
    """Have them kept under a name; never fails."""
    for at in range(0, len(descriptors), _AT_ONCE):
        # A socket that is bound and no more looks hung up, and would be dropped.
        text = f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0"
        _tell(text, descriptors[at : at + _AT_ONCE])


def forget(name: str) -> None:
    """Have all of that name closed; never fails."""
    _tell(f"FDSTOREREMOVE=1\nFDNAME={name}")


def _tell(text: str, descriptors: Sequence[int] = ()) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as end:
        try:
            end.connect(address)
            socket.send_fds(end, [text.encode()], descriptors)
        except OSError as error:
            _log.warning(
                "- systemd cannot be told %s: %s", text.split(maxsplit=1)[0], error
            )
