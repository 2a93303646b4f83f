"""Opens the store that the settings describe: keys, backend, tiers, workers.

Wiring only; the store itself is in ``store/``.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import BadRequest, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.known_store import KnownStore
from jupyterhub_gpu_reclaim.node.operations.store_presence import StorePresence
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.identified import identified
from jupyterhub_gpu_reclaim.store.backends.write_back import CommitMeans, WriteBackCache
from jupyterhub_gpu_reclaim.store.format.compression import Compression
from jupyterhub_gpu_reclaim.store.format.keys import (
    LateKeys,
    load_keys,
    make_key_file,
)
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.eviction import evict
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.setup.settings import StoreSettings
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.backends.identified import (
        IdentifiedBackend,
        Known,
    )
    from jupyterhub_gpu_reclaim.store.format.identity import Role
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

log = logging.getLogger(__name__)

_Place = TypeVar("_Place")
_GB = 10**9
KEY_FILE = "master.key"


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store; :meth:`close` it."""

    backend: Backend
    keys: Wrapper
    repository: Repository
    presence: StorePresence
    pool: Pool
    upload: Upload | None = None

    def close(self) -> None:
        """End the upload between two pieces, and the workers."""
        if self.upload is not None:
            self.upload.stop()
        self.presence.close()
        self.pool.close()


def open_store(settings: StoreSettings, clock: Clock, *, state: Path) -> Opened:
    """The store, with its workers, and the upload on its way where there are tiers.

    Args:
        settings: where and how.
        clock: for the time of a commit.
        state: the agent's own folder; the master key stands beside it by default, so
            that the checkpoints survive the loss of that folder.

    Raises:
        BadRequest: the settings make no sense together.
        StoreError: it cannot be opened, or what is where its keys are is no key.
    """
    places = places_of(settings)
    file = key_file(settings, state)
    keys = _keys(settings, state)
    spare = settings.commit_means == CommitMeans.REMOTE
    known = KnownStore(state, settings.store_local_dir, spare=spare)
    found = identify(places, keys, known)
    backend = joined(found, settings)
    presence = StorePresence(
        known, [each.check for each in found], lambda: make_key(file, clock)
    )
    pool = Pool()
    repository = Repository(
        backend,
        clock=clock,
        keys=keys,
        pool=pool,
        compression=_compression(settings, places),
    )
    upload = None
    if isinstance(backend, WriteBackCache):
        quota = int(settings.store_local_gb * _GB)
        after = partial(evict, backend, repository, quota) if quota else _nothing
        upload = Upload(backend, repository, after=after)
        upload.start()
    return Opened(backend, keys, repository, presence, pool, upload)


def places_of(settings: StoreSettings) -> list[Backend]:
    """The store, and the node's folder in front of it; an object store is not asked.

    Raises:
        BadRequest: the settings make no sense together.
        StoreError: a folder cannot be made or is not ours.
    """
    reserve = int(settings.store_reserve_gb * _GB)
    spec = spec_of(
        settings.store_url,
        options=settings.store_options,
        options_file=settings.store_options_file,
        reserve=reserve,
    )
    if not settings.store_local_dir:
        return [open_backend(spec)]
    local = spec_of(settings.store_local_dir, reserve=reserve)
    if local == spec:
        what = "store_local_dir and store_url are the same folder."
        raise BadRequest(Reason.INVALID, what=what)
    return [open_backend(spec), open_backend(local)]


def with_roles(places: Sequence[_Place]) -> list[tuple[_Place, Role]]:
    """The places of :func:`places_of`, each with what it is to us."""
    roles: tuple[Role, ...] = ("store", "cache")
    return list(zip(places, roles, strict=False))


def identify(
    places: Sequence[Backend], keys: Wrapper, known: Known
) -> list[IdentifiedBackend]:
    """The same places, each used only while it is the one that is meant (law 14)."""
    return [identified(place, keys, known, role) for place, role in with_roles(places)]


def joined(places: Sequence[Backend], settings: StoreSettings) -> Backend:
    """Make one backend of one place or two."""
    if len(places) == 1:
        return places[0]
    store, folder = places
    return WriteBackCache(folder, store, CommitMeans(settings.commit_means))


def keys_of(settings: StoreSettings, state: Path) -> Wrapper:
    """The master keys, from the one place that is set.

    Raises:
        StoreError: several places are set, or what is there is no key.
    """
    folder = settings.master_key_dir
    return load_keys(
        file=key_file(settings, state),
        folder=Path(folder) if folder else None,
        hook=settings.master_key_service or None,
    )


def _keys(settings: StoreSettings, state: Path) -> Wrapper:
    """The same for a program that goes on running: a file may come later."""
    file = key_file(settings, state)
    if file is None and not settings.master_key_dir:
        return keys_of(settings, state)

    def load() -> Wrapper:
        if file is not None and not file.exists():
            why = f"its master key {file} is not there"
            raise StoreError(Reason.STORE_FAILED, why=why)
        return keys_of(settings, state)

    if file is None or file.exists():
        load()  # what makes no sense is said at the start
    return LateKeys(load)


def _compression(settings: StoreSettings, places: Sequence[Backend]) -> str:
    """The compression; ``auto`` is LZ4 over a network, however fast that seems."""
    alone = len(places) == 1 and isinstance(places[0], FolderBackend)
    if settings.compression == "auto" and not alone:
        return Compression.LZ4
    return str(settings.compression)


def key_file(settings: StoreSettings, state: Path) -> Path | None:
    """The file of the master keys; None where they are elsewhere."""
    if settings.master_key_file:
        return Path(settings.master_key_file)
    elsewhere = settings.master_key_dir or settings.master_key_service
    return None if elsewhere else state.with_name(KEY_FILE)


def make_key(file: Path | None, clock: Clock) -> None:
    """Make a first master key, for a store that is begun; one that stands stays."""
    if file is None or file.exists():
        return
    day = datetime.fromtimestamp(clock.now(), UTC).date().isoformat()
    make_key_file(file, f"{day}-{secrets.token_hex(3)}")
    log.warning("- a master key was made, %s: keep a copy of it elsewhere", file)


def _nothing() -> None:
    """There is no quota to keep."""
