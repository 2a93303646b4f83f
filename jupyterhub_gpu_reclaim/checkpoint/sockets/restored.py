"""Finds the sockets of a restored tree, which is stopped, by their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.linux import processes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from jupyterhub_gpu_reclaim.linux.processes import Process


def holders(
    tree: Iterable[Process],
    descriptors: Mapping[tuple[int, int], tuple[int, int]],
    left: Collection[int],
) -> Iterator[tuple[int, int, int]]:
    """Entry, a pidfd of a process that has it, and its descriptor there.

    Args:
        tree: its processes.
        descriptors: (pid in the session, descriptor) → (kind, entry of the image).
        left: the entries that are still looked for; one that the caller leaves in it
            comes again with its next holder.
    """
    pids = {process.ns_pid: process for process in tree}
    for (owner, fd), (_, number) in descriptors.items():
        if number not in left or owner not in pids:
            continue
        with processes.held(pids[owner]) as pidfd:
            if pidfd is not None:
                yield number, pidfd, fd
