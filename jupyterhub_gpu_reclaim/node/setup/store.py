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
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import BadRequest, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.backends.write_back import CommitMeans, WriteBackCache
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.format.compression import Compression
from jupyterhub_gpu_reclaim.store.format.keys import load_keys, make_key_file
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.eviction import evict
from jupyterhub_gpu_reclaim.store.transfer.upload import Upload
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.node.setup.settings import StoreSettings
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

log = logging.getLogger(__name__)

_GB = 10**9
KEY_FILE = "master.key"


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store; :meth:`close` it."""

    backend: Backend
    keys: Wrapper
    repository: Repository
    pool: Pool | None = None
    upload: Upload | None = None

    def close(self) -> None:
        """End the upload between two pieces, and the workers."""
        if self.upload is not None:
            self.upload.stop()
        if self.pool is not None:
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
        StoreError: it cannot be opened, or there is no key.
    """
    backend = backend_of(settings)
    file = key_file(settings, state)
    if file is not None and not file.exists():
        _make_key(file, backend, clock)
    keys = keys_of(settings, state)
    pool = None if settings.store_workers == 0 else Pool(settings.store_workers)
    repository = Repository(
        backend,
        clock=clock,
        keys=keys,
        pool=pool,
        compression=_compression(settings, backend),
        read_back=settings.store_read_back,
    )
    upload = None
    if isinstance(backend, WriteBackCache):
        quota = int(settings.store_local_gb * _GB)
        after = partial(evict, backend, repository, quota) if quota else _nothing
        upload = Upload(backend, repository, after=after)
        upload.start()
    return Opened(backend, keys, repository, pool, upload)


def backend_of(settings: StoreSettings) -> Backend:
    """The place, or the two; an object store is not asked anything yet.

    Raises:
        BadRequest: the settings make no sense together.
        StoreError: a folder cannot be made or is not ours.
    """
    reserve = int(settings.store_reserve_gb * _GB)
    spec = spec_of(
        settings.store_url,
        options=settings.store_options,
        options_file=settings.store_options_file,
        patience=settings.store_patience_seconds,
        reserve=reserve,
    )
    if not settings.store_local_dir:
        return open_backend(spec)
    local = spec_of(settings.store_local_dir, reserve=reserve)
    if local == spec:
        what = "store_local_dir and store_url are the same folder."
        raise BadRequest(Reason.INVALID, what=what)
    means = CommitMeans(settings.commit_means)
    return WriteBackCache(open_backend(local), open_backend(spec), means)


def keys_of(settings: StoreSettings, state: Path) -> Wrapper:
    """The master keys, from the one place that is set.

    Raises:
        StoreError: several places are set, or what is there is no key.
    """
    folder = settings.master_key_dir
    return load_keys(
        file=key_file(settings, state),
        variable=settings.master_key_variable or None,
        folder=Path(folder) if folder else None,
        hook=settings.master_key_service or None,
    )


def _compression(settings: StoreSettings, backend: Backend) -> str:
    """What is sent over a network is compressed, however fast it seems to be taken."""
    if settings.compression == "auto" and not isinstance(backend, FolderBackend):
        return Compression.LZ4
    return str(settings.compression)


def key_file(settings: StoreSettings, state: Path) -> Path | None:
    """The file of the master keys; None where they are elsewhere."""
    if settings.master_key_file:
        return Path(settings.master_key_file)
    elsewhere = (
        settings.master_key_variable,
        settings.master_key_dir,
        settings.master_key_service,
    )
    return None if any(elsewhere) else state.with_name(KEY_FILE)


def _make_key(file: Path, backend: Backend, clock: Clock) -> None:
    """Make a first master key, but never beside sessions that need another one."""
    if backend.list(layout.MANIFESTS):
        why = f"it holds checkpoints, and their master key {file} is not there"
        raise StoreError(Reason.STORE_FAILED, why=why)
    day = datetime.fromtimestamp(clock.now(), UTC).date().isoformat()
    make_key_file(file, f"{day}-{secrets.token_hex(3)}")
    log.warning("- a master key was made, %s: keep a copy of it elsewhere", file)


def _nothing() -> None:
    """There is no quota to keep."""
