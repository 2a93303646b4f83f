"""Copies objects between backends; objects that the target already has are not sent.

The bytes are copied as they are, encrypted, and read back: what arrived is what was
read here. Whether that is what was once written, their seals tell, to the caller.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectExists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry

_BUFFER_BYTES = 4 * 1024 * 1024
#: One upload does not fill a line; each holds about 25 MiB.
_AT_ONCE = 4


def missing(target: Backend, entries: Iterable[Entry]) -> list[Entry]:
    """Entries that the target does not have with that length."""
    wanted = list(entries)
    folders = {entry.name.rpartition("/")[0] + "/" for entry in wanted}
    there = {found for folder in sorted(folders) for found in target.list(folder)}
    return [entry for entry in wanted if entry not in there]


def copy_missing(
    source: Backend,
    target: Backend,
    entries: Iterable[Entry],
    *,
    go_on: Callable[[], bool] = lambda: True,
) -> int:
    """Copy all of them to the target, durably.

    Args:
        source: where they are taken from.
        target: where they are wanted.
        entries: names and lengths.
        go_on: called between pieces; False cancels the copy.

    Returns:
        Bytes that were sent.

    Raises:
        StoreError: ``CANCELLED``, or one could not be copied; those that were copied
            stand there and are not sent again.
    """
    todo = missing(target, entries)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="copy") as threads:
        copies = [threads.submit(_copy, source, target, entry, go_on) for entry in todo]
        try:
            for copy in copies:
                copy.result()
        except BaseException:
            for copy in copies:
                copy.cancel()
            raise
    return sum(entry.length for entry in todo)


def _copy(
    source: Backend, target: Backend, entry: Entry, go_on: Callable[[], bool]
) -> None:
    sent, came = sha256(), sha256()
    try:
        writer = target.create(entry.name)
        try:
            for piece in pieces(source, entry):
                if not go_on():
                    raise StoreError(Reason.CANCELLED)
                writer.write(piece)
                sent.update(piece)
            if source.length(entry.name) != entry.length:
                raise _has_not(entry, Reason.STORE_FAILED)
            writer.finish()
        finally:
            writer.abandon()
    except ObjectExists:
        # Another process has sent the same meanwhile; or it is none of ours, and what
        # stands there may be needed by others.
        if target.length(entry.name) != entry.length:
            raise
        return
    for piece in pieces(target, entry):
        if not go_on():
            raise StoreError(Reason.CANCELLED)
        came.update(piece)
    if came.digest() != sent.digest():
        target.delete(entry.name)
        why = f"{entry.name} reads back differently"
        raise StoreError(Reason.STORE_FAILED, why=why)


def pieces(
    source: Backend, entry: Entry, *, reason: Reason = Reason.STORE_FAILED
) -> Iterator[memoryview]:
    """The bytes of an object; each piece is valid until the next.

    Raises:
        StoreError: it cannot be read; or, with that reason, it is shorter.
    """
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, max(1, entry.length))))
    done = 0
    while done < entry.length:
        part = buffer[: entry.length - done]
        count = source.read_into(entry.name, done, part)
        if not count:
            raise _has_not(entry, reason)
        yield part[:count]
        done += count


def _has_not(entry: Entry, reason: Reason) -> StoreError:
    return StoreError(reason, why=f"{entry.name} has not {entry.length} bytes")
