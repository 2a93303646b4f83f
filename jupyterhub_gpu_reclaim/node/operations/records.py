"""The agent's durable records, one per incarnation.

An operation writes its record before each step that would have to be undone; recovery
reads them at start. A record is replaced whole (temporary file, fsync, rename, fsync of
the folder), so a crash leaves the former one or the new one. It never holds a token or
anything of the session's contents.
"""

from __future__ import annotations

import logging
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common import agent_orders as orders
from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.agent_orders import PodHint
from jupyterhub_gpu_reclaim.common.bounds import Count, Identifier, Line, Moment, Size
from jupyterhub_gpu_reclaim.common.durable import sync_folder, write_durably
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.logs import News
from jupyterhub_gpu_reclaim.common.models import Failure, SessionKey, Step, Value
from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
from jupyterhub_gpu_reclaim.node.requirements import Gpus  # noqa: TC001 msgspec reads it
from jupyterhub_gpu_reclaim.node.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot

_log = logging.getLogger(__name__)

_SUFFIX = ".json"


class Stage(StrEnum):
    """How far an operation has come, as far as undoing it is concerned."""

    CAPTURING = "capturing"  #: the tree may be stopped; nothing is committed
    ROLLING_BACK = "rolling_back"  #: the tree is to go on; unless it is committed
    CAPTURED = "captured"  #: committed; the tree is stopped
    RELEASING = "releasing"  #: committed; the tree is being ended
    RESTORING = "restoring"  #: what stands under the init is incomplete
    CONTINUING = "continuing"  #: restored whole; only has to go on
    RESTORED = "restored"  #: runs, from that checkpoint
    FAILED = "failed"  #: undone; ``failure`` says why
    SETTLED = "settled"  #: nothing to undo; the record is there for its nap


#: The tree stands, and its checkpoint is committed.
SAVED = frozenset({Stage.CAPTURED, Stage.RELEASING})
#: Nothing is left of the operation that would have to be undone or finished.
ENDED = frozenset({Stage.RESTORED, Stage.FAILED, Stage.SETTLED})


class NapStage(StrEnum):
    FALLING = "falling"  #: some may be stopped, some of the memory away
    ASLEEP = "asleep"  #: all are stopped, and their memory is away
    WAKING = "waking"  #: they are to go on with it; some may do so already


class StoppedProgram(Value, frozen=True, kw_only=True):
    """A program that a nap has stopped, also a shell that has started one."""

    pid: Count  #: in the session's own pid namespace
    start: Size  #: clock ticks since boot; with the pid it names the process


class NapRecord(Value, frozen=True, kw_only=True):
    """What it takes to wake the programs of a nap."""

    stage: NapStage
    begun: Moment
    gpus: Gpus
    memory_limit: LimitRecord = LimitRecord()  #: lifted meanwhile
    programs: list[StoppedProgram]
    #: by "pid/number": bytes unread long before the stop, which wake nobody
    standing: dict[str, int] = msgspec.field(default_factory=dict)

    def in_tree(self, snapshot: Snapshot) -> list[Process]:
        """Programs of the nap that are still there, parents before children."""
        known = {(program.pid, program.start) for program in self.programs}
        return [p for p in snapshot.processes if (p.ns_pid, p.start_time) in known]

    def with_more(self, more: NapRecord) -> NapRecord:
        """The same while other programs of the session are falling asleep, too."""
        return msgspec.structs.replace(
            self,
            stage=more.stage,
            gpus=self.gpus.joined(more.gpus),
            programs=[*self.programs, *more.programs],
        )


class Record(Value, frozen=True, kw_only=True):
    """One incarnation's last operation, and what it takes to undo it."""

    version: int = codec.VERSION
    operation: str  #: capture, save, restore or nap
    incarnation: Identifier
    key: SessionKey
    stage: Stage
    checkpoint: Line
    generation: Count = 0
    init_pid: Count
    init_start: Size
    begun: Moment
    #: by their user, as pids in the session, which a restore keeps: never thawed
    stopped_before: list[Count] = msgspec.field(default_factory=list)
    steps: list[Step] = msgspec.field(default_factory=list)
    failure: Failure | None = None
    gpus: Gpus | None = None  #: those that are emptied
    memory_limit: LimitRecord = LimitRecord()  #: lifted meanwhile
    hint: PodHint = PodHint()  #: what was told of it, with its key
    #: of a capture or nap: the checkpoint that the tree was restored from
    parent: str = ""
    #: not the operation's: it began before, and lasts when that is undone
    nap: NapRecord | None = None
    #: of a restore from a save point: the moment of that, and folders of newer files
    as_of: Moment = 0.0
    newer: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, session: Session, **more: Any) -> Record:
        return cls(
            incarnation=session.incarnation,
            key=session.key,
            init_pid=session.init_pid,
            init_start=session.init_start,
            hint=msgspec.structs.replace(session.hint, key=session.key),
            **more,
        )

    @property
    def session(self) -> Session:
        """The session, as far as it takes to let it go on."""
        return Session(
            incarnation=self.incarnation,
            key=self.key,
            init_pid=self.init_pid,
            init_start=self.init_start,
            holding=False,
            hint=self.hint,
        )

    @property
    def origin(self) -> str:
        """The checkpoint that this tree was restored from; empty: none, or unknown."""
        return self.checkpoint if self.operation == orders.Restore.kind else self.parent

    @property
    def naps(self) -> bool:
        """Whether programs are, or may be, stopped by a nap, and nothing else is."""
        return self.nap is not None and self.stage in ENDED

    def all_gpus(self) -> Gpus | None:
        """GPUs that the operation has emptied, and those that a nap has."""
        return self.gpus if self.nap is None else self.nap.gpus.joined(self.gpus)

    def nap_at(self, stage: NapStage, **changes: Any) -> Record:
        assert self.nap is not None
        return self.with_nap(msgspec.structs.replace(self.nap, stage=stage, **changes))

    def with_nap(self, nap: NapRecord | None) -> Record:
        return msgspec.structs.replace(self, nap=nap)

    def at(self, stage: Stage, steps: list[Step], **changes: Any) -> Record:
        return msgspec.structs.replace(self, stage=stage, steps=steps, **changes)


class Records:
    """The folder with the records; all calls are quick and synchronous."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: dict[str, Record] = {}
        #: one that is written late must not replace a newer one
        self._lock = threading.Lock()
        self._news = News()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, record: Record) -> None:
        """Replace that record, durably; OSError: the former one stays."""
        with self._lock:
            self._write(record)
            self._unwritten.pop(record.incarnation, None)

    def remember(self, record: Record) -> None:
        """Go by a record that cannot be written, until one can or this agent ends."""
        with self._lock:
            self._unwritten[record.incarnation] = record

    def note(self, record: Record) -> None:
        """Save it, or go by it all the same: what it tells of has happened."""
        try:
            self.save(record)
        except OSError as error:
            _log.warning("%s record cannot be written: %s", record.key, error)
            self.remember(record)

    def write_remembered(self) -> None:
        """Try to write those that could not be; what still cannot be, stays."""
        # Else the next agent takes a session that has run since for frozen or napping.
        with self._lock:
            for name, record in list(self._unwritten.items()):
                try:
                    self._write(record)
                except OSError as error:
                    _log.debug("%s record cannot be written yet: %s", record.key, error)
                else:
                    del self._unwritten[name]

    def find(self, incarnation: str) -> Record | None:
        """The record of an incarnation, if there is one that can be read."""
        return self._unwritten.get(incarnation) or self._read(incarnation)

    def list(self) -> list[Record]:
        """Every record that can be read; one that cannot is logged and left."""
        found = {record.incarnation: record for record in self._all()}
        return list({**found, **self._unwritten}.values())

    def delete(self, incarnation: str) -> None:
        with self._lock:
            self._unwritten.pop(incarnation, None)
            self._remove(incarnation)

    def _write(self, record: Record) -> None:
        write_durably(self._path(record.incarnation), codec.encode(record))

    def _read(self, incarnation: str) -> Record | None:
        return self._read_from(self._path(incarnation))

    def _remove(self, incarnation: str) -> None:
        self._path(incarnation).unlink(missing_ok=True)
        sync_folder(self._folder)

    def _all(self) -> Iterator[Record]:
        for path in sorted(self._folder.glob("*" + _SUFFIX)):
            record = self._read_from(path)
            if record is not None:
                yield record

    def _path(self, incarnation: str) -> Path:
        return self._folder / (incarnation + _SUFFIX)

    def _read_from(self, path: Path) -> Record | None:
        found, trouble = None, ""
        try:
            found = codec.decode_kept(path.read_bytes(), Record, "The record")
        except FileNotFoundError:
            pass
        except (OSError, BadRequest) as error:
            trouble = str(error)
        if self._news.is_new(path.name, trouble):
            _log.error("record %s cannot be read: %s", path.name, trouble)
        return found
