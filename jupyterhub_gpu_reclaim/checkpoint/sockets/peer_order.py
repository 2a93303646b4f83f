"""Puts UNIX sockets behind those that they lead to, in ``files.img``.

CRIU reads the image once. It joins two ends that lead to each other as soon as it has
both; but one that leads where nothing leads back, to a listener that has not accepted
it or to a datagram socket, it joins only to what it has read before ("Peer …
unresolved"). It writes them in the order of their descriptors, which may be any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import images

if TYPE_CHECKING:
    from collections.abc import Mapping


def peers_first(files_img: bytes) -> bytes:
    """The same entries; what another leads to stands before it.

    Raises:
        RestoreFailed: it is no ``files.img`` (``checkpoint_damaged``).
    """
    payloads = list(images.split(files_img, images.FILES_MAGIC))
    entries = [images.parse("file_entry", payload) for payload in payloads]
    ends = [one.usk.ino if one.HasField("usk") else 0 for one in entries]
    unix = [one.usk for one in entries if one.HasField("usk")]
    steps = _steps({one.ino: one.peer for one in unix})
    if not any(steps.values()):
        return files_img
    order = sorted(range(len(ends)), key=lambda number: steps.get(ends[number], 0))
    return images.join(images.FILES_MAGIC, [payloads[number] for number in order])


def _steps(peers: Mapping[int, int]) -> dict[int, int]:
    """How many sockets each leads to, one by another; none, in a circle of them."""
    found: dict[int, int] = {}
    for start in peers:
        path, one = [], start
        while one in peers and one not in found:
            found[one] = 0
            path.append(one)
            one = peers[one]
        if one in path:
            del path[path.index(one) :]
        steps = found.get(one, -1)
        for each in reversed(path):
            steps += 1
            found[each] = steps
    return found
