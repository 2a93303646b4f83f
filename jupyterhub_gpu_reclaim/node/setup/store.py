"""Opens the store that the settings describe: keys, backend, workers."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations import known_term
from jupyterhub_gpu_reclaim.node.setup import store_init
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from jupyterhub_gpu_reclaim.store.format.keys import LateKeys, load_keys
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import Finding
    from jupyterhub_gpu_reclaim.node.setup.settings import StoreSettings
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.keys import StoreKeys

_log = logging.getLogger(__name__)

_GB = 10**9
KEY_FILE = "master.key"
#: Seconds that a look is waited for: a folder answers in less than one millisecond.
_WAIT: Final = 2.0


class StorePresence:
    """Looks at the store's identity (law 14); ``begin`` goes first.

    Looks are made one at a time and aside: an object store that does not answer keeps
    one look waiting for minutes, and nobody who asks for the node's status.
    """

    def __init__(
        self,
        check: IdentifiedBackend,
        begin: Callable[[], object],
        key_file: Path | None,  # None: the keys are elsewhere
    ) -> None:
        self._check = check
        self._key_file = key_file
        self._begin = begin
        self._look: Future[list[Finding]] | None = None
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="store")

    def close(self) -> None:
        self._aside.shutdown(wait=False, cancel_futures=True)

    def findings(self) -> list[Finding]:
        """Find what is to be said of the store: nothing is saved while it is absent."""
        look = self._look
        if look is None or look.done():
            look = self._look = self._aside.submit(self._confirm)
        try:
            return look.result(_WAIT)
        except TimeoutError:
            why = f"it has not answered for {_WAIT:g} s"
            return [finding(Reason.STORE_UNREACHABLE, fatal=False, why=why)]

    def _confirm(self) -> list[Finding]:
        try:
            self._begin()
            self._check.confirm()
        except ReclaimError as error:
            # One that does not answer now is asked again by each order, and may have
            # then.
            fatal = error.reason is not Reason.STORE_UNREACHABLE
            return [finding(error.reason, fatal=fatal, **error.facts)]
        if self._key_file is None or self._key_file.exists():
            return []
        why = f"{self._key_file} is gone, and the agent remembers it until it ends"
        return [finding(Reason.KEY_MISSING, fatal=False, why=why)]


@dataclass(frozen=True, slots=True)
class Opened:
    repository: Repository
    presence: StorePresence
    pool: Pool

    def close(self) -> None:
        self.presence.close()
        self.pool.close()


def open_store(settings: StoreSettings, clock: Clock, *, state: Path) -> Opened:
    """The store, with its workers.

    The master key is beside the ``state`` folder by default, so that the checkpoints
    survive its loss.

    Raises:
        BadRequest: the settings contradict each other.
        StoreError: it cannot be opened, or has no valid key.
    """
    file = key_file(settings, state)
    keys = keys_of(settings, state)
    place, where = place_of(settings), settings.store_url
    backend = IdentifiedBackend(place, keys, where)

    first = file is not None and _may_begin(file, state)

    def begin() -> None:
        nonlocal first
        if first and file is not None and not file.exists():
            store_init.begin(place, where, file, clock.now())
            _log.warning("- the store was begun at %s", where)
            _log.warning("- keep a copy of its master key elsewhere: %s", file)
        first = False

    presence = StorePresence(backend, begin, file)
    presence.findings()
    pool = Pool()
    repository = Repository(
        backend,
        clock=clock,
        keys=keys,
        pool=pool,
        compression=settings.compression,
    )
    return Opened(repository, presence, pool)


def place_of(settings: StoreSettings) -> Backend:
    """The place of the store; an object store is not contacted.

    Raises:
        BadRequest: the settings contradict each other.
        StoreError: a folder cannot be made or is not ours.
    """
    spec = spec_of(
        settings.store_url,
        options=settings.store_options,
        options_file=settings.store_options_file,
        reserve=int(settings.store_reserve_gb * _GB),
    )
    return open_backend(spec)


def keys_of(settings: StoreSettings, state: Path) -> StoreKeys:
    """The master keys, from the one place that is set; a file may come later.

    Raises:
        StoreError: several places are set, or there is no valid key in one that is
            there.
    """
    file, hook = key_file(settings, state), settings.master_key_service or None
    folder = Path(settings.master_key_dir) if settings.master_key_dir else None

    def load() -> StoreKeys:
        return load_keys(file=file, folder=folder, hook=hook)

    def load_late() -> StoreKeys:
        if file is not None and not file.exists():
            raise Unavailable(f"{file} is not there", reason=Reason.KEY_MISSING)
        return load()

    if hook is not None:
        return load()
    if file is None or file.exists() or folder is not None:
        load()  # what makes no sense is said at the start
    return LateKeys(load_late)


def key_file(settings: StoreSettings, state: Path) -> Path | None:
    """The file of the master keys; None if they are elsewhere."""
    if settings.master_key_file:
        return Path(settings.master_key_file)
    elsewhere = settings.master_key_dir or settings.master_key_service
    return None if elsewhere else state.with_name(KEY_FILE)


def _may_begin(file: Path, state: Path) -> bool:
    """Whether this is the agent's first start, which makes key and store by itself."""
    # One that has heard a service had a key: its volume is not mounted, or it is lost.
    if file.exists():
        return False
    return store_init.aside(file).exists() or not (state / known_term.FILE).exists()
