"""The store in memory: shared by all nodes, with each agent's own way to it.

It keeps the store's promises (``tests/contracts/test_repository.py``): a checkpoint is
committed whole or it does not exist, a commit is durable when it returns, ``abort``
says when a commit had won, ``delete`` is idempotent. Blocks, packs and encryption are
not simulated; the store's own suites are for these. Each call may be slow, fail, or be
cut off by the end of the program that makes it, on either side of its effect. Whether
it is there at all, the agents' own look at its identity decides.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    ReclaimError,
    Refused,
    StoreError,
)
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, Mark
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from jupyterhub_gpu_reclaim.store.format.index import is_name
from jupyterhub_gpu_reclaim.store.format.keys import KeyRing
from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber
from simulation.doubles.memory_backend import MemoryBackend
from simulation.loop import pause

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from simulation.loop import Program


_ID = "1" * 32


class Saved(NamedTuple):
    info: CheckpointInfo
    files: dict[str, bytes]
    #: the last word about it, and its number
    mark: tuple[MarkNumber, Mark] = (MarkNumber(-1, 0), Mark())

    def shown(self) -> CheckpointInfo:
        number, said = self.mark
        return self.info.marked(said, number) if number.term >= 0 else self.info


class Swept(NamedTuple):
    """What a sweep has removed."""

    removed: tuple[str, ...] = ()
    freed_bytes: int = 0


class Volume(MemoryBackend):
    """Where the store's identity stands: its volume, or the empty place below."""

    mounted = True

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Nothing is there while it is not mounted."""
        if not self.mounted:
            raise ObjectMissing(name)
        return super().read(name, offset, length)


def _identified(volume: Volume) -> IdentifiedBackend:
    check = IdentifiedBackend(
        volume, KeyRing({"k": bytes(32)}, _ID), "the store's place"
    )
    check.begin()
    return check


@dataclass
class StoreInMemory:
    rng: random.Random
    saved: dict[str, Saved] = field(default_factory=dict)
    #: what was written into its place while it was not mounted
    below: dict[str, Saved] = field(default_factory=dict)
    volume: Volume = field(default_factory=Volume)
    away: bool = False
    full: bool = False
    failing: float = 0.0  #: share of calls that fail
    late_failing: float = 0.0  #: share of deletions that fail after they were done
    slow: float = 0.0  #: seconds that a call takes at most
    committed: Callable[[CheckpointInfo, dict[str, bytes]], None] = print
    #: which trees of its session stand as the deletion of one begins
    standing: Callable[[CheckpointInfo], list[str]] = lambda _: []
    deleted: Callable[[str, CheckpointInfo, list[str]], None] = print

    def __post_init__(self) -> None:
        self._check = _identified(self.volume)

    @property
    def there(self) -> dict[str, Saved]:
        return self.saved if self.volume.mounted else self.below

    def publish(self, info: CheckpointInfo, files: dict[str, bytes]) -> None:
        """It exists from now on, if what stands there is the store.

        Raises:
            StoreError: the volume has gone meanwhile (``store_absent``).
        """
        self.there[info.id] = Saved(info, files)
        self._check.confirm()
        self.committed(info, files)

    def touch(self) -> None:
        """One request to the store.

        Raises:
            StoreError: it does not answer.
        """
        if self.slow and self.rng.random() < 0.3:
            pause(self.rng.uniform(0.0, self.slow))
        if self.away:
            pause(0.5)
            raise StoreError(Reason.STORE_UNREACHABLE)
        if self.failing and self.rng.random() < self.failing:
            raise StoreError(Reason.STORE_FAILED)
        self._check.confirm()


class RepositoryInMemory:
    """One agent's way to the store; see ``store.repository.Repository``."""

    def __init__(self, store: StoreInMemory, program: Program, clock: Clock) -> None:
        self.store = store
        self.program = program
        self.clock = clock
        self._writing: set[str] = set()

    def begin(
        self,
        *,
        id: str,  # noqa: A002 - its name everywhere
        key: SessionKey,
        incarnation: str,
        generation: int,
        expected_bytes: int = 0,
        parent: str = "",
        session: str = "",
        account: str = "",
        term: int = 0,
    ) -> Writer:
        del expected_bytes
        self.store.touch()
        if id in self.store.there:
            raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=id)
        if id in self._writing:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="capture")
        self._writing.add(id)
        info = CheckpointInfo(
            id=id,
            key=key,
            incarnation=incarnation,
            generation=generation,
            created=0.0,
            logical_bytes=0,
            stored_bytes=0,
            parent=parent,
            session=session,
            account=account,
            term=term,
        )
        return Writer(self, info)

    def ended(self, checkpoint: str) -> None:
        self._writing.discard(checkpoint)

    def prepare(self) -> None:
        """No workers are forked here."""

    def exists(self, checkpoint: str) -> bool:
        self.store.touch()
        return checkpoint in self.store.there

    def open(self, checkpoint: str) -> Reader:
        return Reader(self.store, self._found(checkpoint))

    def info(self, checkpoint: str) -> CheckpointInfo:
        return self._found(checkpoint).info

    def _found(self, checkpoint: str) -> Saved:
        self.store.touch()
        found = self.store.there.get(checkpoint)
        if found is None:
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return found

    def delete(self, checkpoint: str) -> int:
        known = self.store.there.get(checkpoint)
        stood = self.store.standing(known.info) if known is not None else []
        self.store.touch()
        if checkpoint in self._writing:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation="capture")
        self.program.effect()
        found = self.store.there.pop(checkpoint, None)
        if found is not None:
            self.store.deleted(self.program.name, found.info, stood)
        self.program.effect()
        store = self.store
        if store.late_failing and store.rng.random() < store.late_failing:
            raise StoreError(Reason.STORE_FAILED)
        return 0

    def mark(self, checkpoint: str, said: Mark, number: MarkNumber) -> None:
        found = self._found(checkpoint)
        last, word = found.mark
        if number <= last:
            if said != word:
                raise Refused(Reason.FORMER_SERVICE, term=number.term, obeyed=last.term)
            return
        self.program.effect()
        self.store.there[checkpoint] = found._replace(mark=(number, said))
        self.program.effect()

    def sweep(self, **more: Any) -> Swept:
        """Remove what is unfinished; here nothing of it was ever seen."""
        del more
        self.store.touch()
        return Swept()

    def free_bytes(self) -> int | None:
        return 0 if self.store.full else None

    def list(self) -> list[CheckpointInfo]:
        self.store.touch()
        infos = [saved.shown() for saved in self.store.there.values()]
        return sorted(infos, key=lambda info: (info.created, info.id))


class Writer:
    def __init__(self, repository: RepositoryInMemory, info: CheckpointInfo) -> None:
        self._repository = repository
        self._info = info
        self._files: dict[str, bytearray] = {}
        self._cancelled = False
        self._failed = False
        self._committed: CheckpointInfo | None = None

    @property
    def logical_bytes(self) -> int:
        return sum(len(data) for data in self._files.values())

    stored_bytes = logical_bytes
    parts = None

    def file(self, name: str) -> AbstractContextManager[FileWriter]:
        if not is_name(name) or name in self._files:
            raise BadRequest(Reason.INVALID, what=f"No file may be called {name!r}.")
        self._check()
        return self._written(self._files.setdefault(name, bytearray()))

    @contextmanager
    def _written(self, data: bytearray) -> Iterator[FileWriter]:
        try:
            yield FileWriter(self._repository.store, data, self._check)
        except BaseException:
            self._failed = True
            raise

    def add(self, name: str, data: bytes) -> None:
        with self.file(name) as file:
            file.write(data)

    def commit(
        self, *, last_look: Callable[[], None] | None = None, **more: Any
    ) -> CheckpointInfo:
        """Make it exist, unless the last look at it bars that."""
        if self._committed:
            return self._committed
        self._check()
        store, program = self._repository.store, self._repository.program
        try:
            store.touch()
            if store.full:
                raise StoreError(Reason.STORE_FULL, needed="1 GB", free="0 B")
            if last_look is not None:
                last_look()
        except ReclaimError:
            self._repository.ended(self._info.id)
            raise
        self._check()
        program.effect()
        info = _finished(self._info, self._repository.clock, self.logical_bytes, more)
        files = {name: bytes(data) for name, data in self._files.items()}
        try:
            store.publish(info, files)
        finally:
            self._repository.ended(info.id)
        self._committed = info
        program.effect()
        return info

    def abort(self) -> bool:
        """Remove everything that was written; False when a commit had won."""
        self._cancelled = True
        if self._committed:
            return False
        # Now: what cannot be removed in an outage can be deleted after it.
        self._repository.ended(self._info.id)
        self._repository.store.touch()
        return not self._committed

    def _check(self) -> None:
        if self._failed:
            raise StoreError(Reason.STORE_FAILED, why="a file was not written")
        if self._cancelled:
            raise StoreError(Reason.CANCELLED)
        if self._committed:
            raise StoreError(Reason.CHECKPOINT_EXISTS, checkpoint=self._info.id)


def _finished(
    info: CheckpointInfo, clock: Clock, size: int, more: dict[str, Any]
) -> CheckpointInfo:
    values = {name: getattr(info, name) for name in info.__struct_fields__}
    values.update(
        created=clock.now(),
        logical_bytes=size,
        stored_bytes=size,
        steps=list(more.get("steps", ())),
        frozen_seconds=more.get("frozen_seconds", 0.0),
        goes_on=more.get("goes_on", False),
        name=more.get("name", ""),
        gpus=list(more.get("gpus", ())),
    )
    return CheckpointInfo(**values)


class FileWriter:
    def __init__(
        self, store: StoreInMemory, data: bytearray, check: Callable[[], None]
    ) -> None:
        self._store = store
        self._data = data
        self._check = check

    def write(self, data: bytes) -> None:
        self._check()
        self._store.touch()
        if self._store.full:
            raise StoreError(Reason.STORE_FULL, needed="1 GB", free="0 B")
        self._data += data


class Reader:
    def __init__(self, store: StoreInMemory, saved: Saved) -> None:
        self._store = store
        self._saved = saved

    @property
    def info(self) -> CheckpointInfo:
        return self._saved.info

    def names(self) -> list[str]:
        return list(self._saved.files)

    def __contains__(self, name: object) -> bool:
        return name in self._saved.files

    def size(self, name: str) -> int:
        return len(self._file(name))

    def read(self, name: str) -> bytes:
        self._store.touch()
        return self._file(name)

    def stream(self, name: str, skip: Any = ()) -> Iterator[bytes]:
        del skip
        self._store.touch()
        data = self._file(name)
        half = len(data) // 2
        yield data[:half]
        self._store.touch()
        yield data[half:]

    def _file(self, name: str) -> bytes:
        if name not in self._saved.files:
            detail = f"no file {name}"
            raise StoreError(Reason.CHECKPOINT_DAMAGED, detail=detail)
        return self._saved.files[name]
