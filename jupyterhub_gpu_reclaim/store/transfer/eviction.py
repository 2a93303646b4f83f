"""Frees space in the node's folder by dropping copies that are whole in the store.

It never deletes anything in the store, and in the folder only what has been read from
the store and opened: the copy there is the only one then. What is damaged there is
mended from the folder's copy first.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable, exists
from jupyterhub_gpu_reclaim.store.backends.copying import missing
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.catalogue import locks
from jupyterhub_gpu_reclaim.store.checkpoint import Problem
from jupyterhub_gpu_reclaim.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.backends.write_back import WriteBackCache
    from jupyterhub_gpu_reclaim.store.repository import Repository

log = logging.getLogger(__name__)


def evict(cache: WriteBackCache, repository: Repository, quota: int) -> list[str]:
    """Drop copies, of the least recently suspended session first, down to a quota.

    The manifest goes first, so that a crash leaves packs without one here, which the
    next call drops. What has not been uploaded stays, whatever the quota says.

    Args:
        cache: the folder and the store.
        repository: knows what each checkpoint needs.
        quota: bytes that may stand in the folder.

    Returns:
        Ids of the checkpoints whose copy was dropped.

    Raises:
        StoreError: folder or store does not answer; what was dropped is dropped.
    """
    used = _used(cache)
    if used <= quota:
        return []
    needs = _needs(cache, repository)
    used -= _drop_unneeded(cache, needs.values())
    dropped: list[str] = []
    whole: set[tuple[str, int]] = set()
    for id_ in list(needs):
        if used <= quota:
            break
        if not _is_whole_there(cache, id_, needs[id_]):
            continue
        if id_ in cache.unmended or not _opens_there(cache, repository, id_, whole):
            continue
        cache.local.delete(layout.intent(id_))
        cache.local.delete(layout.manifest(id_))
        del needs[id_]
        used -= _drop_unneeded(cache, needs.values())
        dropped.append(id_)
        log.info("- the copy of %s on this node was dropped: it is uploaded", id_)
    if used > quota:
        log.warning(
            "- the folder of this node holds %s, %s more than it may, and nothing"
            " else in it is uploaded yet",
            text.size(used),
            text.size(used - quota),
        )
    return dropped


def _needs(cache: WriteBackCache, repository: Repository) -> dict[str, Sequence[Entry]]:
    """Objects of each checkpoint with a copy here, least recently suspended first."""
    needs: dict[str, Sequence[Entry]] = {}
    for info in repository.list():
        if exists(cache.local, layout.manifest(info.id)):
            with contextlib.suppress(NotFound):  # deleted in between
                needs[info.id] = repository.objects(info.id)
    return needs


def _used(cache: WriteBackCache) -> int:
    return sum(entry.length for entry in cache.local.list(layout.PACKS))


def _is_whole_there(
    cache: WriteBackCache, checkpoint: str, needs: Sequence[Entry]
) -> bool:
    manifest = layout.manifest(checkpoint)
    return exists(cache.remote, manifest) and not missing(cache.remote, needs)


def _opens_there(
    cache: WriteBackCache,
    repository: Repository,
    checkpoint: str,
    whole: set[tuple[str, int]],
) -> bool:
    """Whether all of a checkpoint can be read from the store alone, at last.

    Args:
        cache: the folder and the store.
        repository: opens it.
        checkpoint: its id.
        whole: blocks in the store that need not be read again; added to.
    """
    seen = set(whole)
    try:
        problems = _problems(cache, repository, checkpoint, seen)
    except NotFound:
        return False  # deleted in between
    except StoreError as error:
        if error.reason not in (Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING):
            raise
        problems = [Problem("", "", error.message)]
    if not problems:
        whole |= seen
        return True
    why = problems[0].why
    cache.unmended.add(checkpoint)
    log.warning("- %s stays here, it is damaged in the store: %s", checkpoint, why)
    return False


def _problems(
    cache: WriteBackCache,
    repository: Repository,
    checkpoint: str,
    whole: set[tuple[str, int]],
) -> list[Problem]:
    """Find what is damaged in the store, after mending it with what the folder has."""
    there = _StoreThenFolder(cache)
    problems = repository.verify(checkpoint, place=there, whole=whole)
    there.flush()
    if problems or not there.mended:
        return problems
    return repository.verify(checkpoint, place=cache.remote)


def _mend(store: Backend, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
    """Put bytes back into an object of the store, whole or not at all.

    Its other bytes may be needed by others, and the folder may not have them.
    """
    data = bytearray(store.read(name, 0, store.length(name)))
    for offset, patch in patches:
        data[offset : offset + len(patch)] = patch
    store.replace(name, bytes(data))
    log.warning("- %s was damaged in the store, and was mended", name)


class _StoreThenFolder(BackendProxy):
    """The store; what does not open comes from the folder, and is put back there.

    Blocks are opened in the order in which they stand, so one pack's are held at most.

    Args:
        cache: whose store and folder.
    """

    def __init__(self, cache: WriteBackCache) -> None:
        super().__init__(cache.remote)
        self._local = cache.local
        self._name, self._patches = "", list[tuple[int, bytes]]()
        self.mended = False

    def copies(self) -> Sequence[Backend]:
        """The store, then the folder."""
        return self, self._local

    def durable(self) -> Backend:
        """The store: nothing is written through this."""
        return self._backend

    def mend(self, name: str, offset: int, data: bytes) -> None:
        """Remember it until all of that object is known."""
        if name != self._name:
            self.flush()
        self._name = name
        self._patches.append((offset, data))

    def flush(self) -> None:
        """Put back what is remembered."""
        patches, self._patches = self._patches, []
        if not patches:
            return
        self.mended = True
        try:
            _mend(self._backend, self._name, patches)
        except Unavailable:
            raise
        except StoreError as error:
            log.warning("- %s cannot be mended in the store: %s", self._name, error)


def _drop_unneeded(cache: WriteBackCache, needs: Iterable[Sequence[Entry]]) -> int:
    """Drop packs that no checkpoint here needs and that the store has; bytes freed."""
    found = cache.local.list(layout.PACKS)  # first: a later one references no pack
    needed = {entry for entries in needs for entry in entries}
    intents = locks.all_intents(cache.local)
    referenced = {id_ for intent in intents for id_ in intent.references}
    spare = [
        entry
        for entry in found
        if entry not in needed and layout.id_of(entry.name) not in referenced
    ]
    kept = set(missing(cache.remote, spare))
    freed = 0
    for entry in spare:
        if entry not in kept:
            cache.local.delete(entry.name)
            freed += entry.length
    return freed
