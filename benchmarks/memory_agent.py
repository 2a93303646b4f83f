"""Sessions of a benchmark as values, and the orders that an agent obeys.

Which order is refused in which state, and what is left after each, is as with a node's
own agent; what takes time or room there, the benchmark's agent says
(:meth:`~MemoryAgent.capturing` and its neighbours).
"""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.models import (
    CheckpointInfo,
    Event,
    Failure,
    GpuSample,
    Identity,
    Mark,
    Nap,
    SessionKey,
    Shortage,
    Step,
    Tree,
    TreeState,
    of_session,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyterhub_gpu_reclaim.common.agent_orders import AgentOrder


class MemoryOperation:
    """A capture, restore, nap or wake, under way or ended; any number may follow it."""

    def __init__(self, kind: str, checkpoint: str) -> None:
        self.kind = kind
        self.checkpoint = checkpoint
        self.cancelled = False
        self.events: list[Event] = []
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether its last event, the end, is there."""
        return bool(self.events) and self.events[-1].step is None

    def add(self, event: Event) -> None:
        """Tell its followers."""
        self.events.append(event)
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self) -> AsyncIterator[Event]:
        """All its events, from the first to the end."""
        number = 0
        while not self.done or number < len(self.events):
            while number == len(self.events):
                await self._news.wait()
            yield self.events[number]
            number += 1


@dataclass(eq=False)
class MemorySession:
    """One incarnation."""

    key: SessionKey
    incarnation: str
    state: TreeState
    _: KW_ONLY
    contents: Any = ""  #: stands for all of its memory
    checkpoint: str = ""
    generation: int = 0
    term: int = 0  #: of the service that has ordered that capture
    failure: Failure | None = None
    parent: str = ""  #: checkpoint that it was restored from
    pod: str = ""
    session: str = ""  #: id of the session that it is an incarnation of
    account: str = ""
    gpu_memory: int = 0  #: bytes that its programs have on a GPU while it is awake
    nap: Nap | None = None
    shortage: Shortage | None = None  #: while its wake waits for memory
    operation: MemoryOperation | None = field(default=None, repr=False)

    @property
    def is_back(self) -> bool:
        """Whether its programs go on, or nap."""
        return self.state in {TreeState.RUNNING, TreeState.NAPPING}

    @property
    def running(self) -> MemoryOperation | None:
        """The operation under way."""
        operation = self.operation
        return operation if operation is not None and not operation.done else None

    def tree(self) -> Tree:
        """What the agent says of it."""
        return Tree(
            incarnation=self.incarnation,
            key=self.key,
            state=self.state,
            init_pid=1,
            checkpoint=self.checkpoint,
            origin=self.parent,
            generation=self.generation,
            operation=self.running.kind if self.running is not None else "",
            failure=self.failure,
            pod=self.pod,
            session=self.session,
            account=self.account,
            nap=self.nap if self.state is self.goes_on_as else None,
            shortage=self.shortage,
        )

    def gpu(self) -> GpuSample:
        """What it has of its card while it is awake."""
        return GpuSample(uuid="0" * 32, memory=self.gpu_memory)

    @property
    def goes_on_as(self) -> TreeState:
        """What it is again once a capture of it is undone."""
        naps = self.nap is not None
        return TreeState.NAPPING if naps else TreeState.RUNNING


S = TypeVar("S", bound=MemorySession)


class MemoryAgent(Generic[S]):
    """The agent's rules over sessions in memory.

    Attributes:
        places: the sessions by incarnation; what has ended is not in it.
        saved: the committed checkpoints, each with the contents of its session.
        words: term and number of the last word about each.
        lost: contents of what was killed without a checkpoint.
    """

    def __init__(self) -> None:
        self.places: dict[str, S] = {}
        self.saved: dict[str, tuple[CheckpointInfo, Any]] = {}
        self.words: dict[str, tuple[int, int]] = {}
        self.lost: list[Any] = []
        self._gpu_memory: dict[str, int] = {}  # that checkpoints hold
        self._killed: dict[str, Tree] = {}
        self._moved = asyncio.Event()

    # --- what a double may do otherwise

    def now(self) -> float:
        """Seconds since the epoch."""
        return 0.0

    def term(self) -> int:
        """Of the service whose order is carried out; 0: not known."""
        return 0

    async def capturing(self, session: S) -> AsyncIterator[Event]:
        """The steps of a capture, in their time; a failure ends it."""
        del session
        yield Event(step=Step(step="dump", title="Saving the memory"))
        await asyncio.sleep(0)
        yield Event(step=Step(step="dump", title="Saving the memory", state="done"))

    async def restoring(self, session: S) -> AsyncIterator[Event]:
        """The steps of a restore, likewise."""
        del session
        yield Event(step=Step(step="memory", title="Bringing the memory back"))
        await asyncio.sleep(0)

    async def napping(self, session: S) -> AsyncIterator[Event]:
        """The steps of a nap, likewise."""
        del session
        yield Event(step=Step(step="gpu", title="Moving the memory of its GPU out"))
        await asyncio.sleep(0)

    async def waking(self, session: S) -> AsyncIterator[Event]:
        """The steps of a wake, likewise."""
        del session
        yield Event(step=Step(step="gpu", title="Bringing it back"))
        await asyncio.sleep(0)

    def info(self, session: S) -> CheckpointInfo:
        """What is known of the checkpoint that a capture commits."""
        return CheckpointInfo(
            id=session.checkpoint,
            key=session.key,
            incarnation=session.incarnation,
            generation=session.generation,
            created=0.0,
            logical_bytes=0,
            stored_bytes=0,
            parent=session.parent,
            session=session.session,
            account=session.account,
            term=session.term,
            gpus=[session.gpu()] if session.gpu_memory else [],
        )

    def image(self, session: S) -> Any:
        """What a checkpoint keeps of a session."""
        return session.contents

    def fill(self, session: S, image: Any) -> None:
        """Give a session what its checkpoint has kept."""
        session.contents = image

    def keep(self, info: CheckpointInfo, image: Any) -> None:
        """Commit a checkpoint."""
        self.saved[info.id] = info, image

    def drop(self, checkpoint: str) -> None:
        """Delete a checkpoint, if it exists."""
        self.saved.pop(checkpoint, None)

    def end(self, incarnation: str) -> None:
        """Its processes have ended, by whomever."""
        self.places.pop(incarnation, None)

    # --- looking

    async def trees(self, key: SessionKey | None = None) -> list[Tree]:
        """Every incarnation that has not ended; with a ``key``, of that session."""
        return of_session(key, [session.tree() for session in self.places.values()])

    async def tree(self, incarnation: str) -> Tree:
        """One of them, or one that was killed; ``NotFound`` if there is none."""
        if incarnation not in self.places and incarnation in self._killed:
            return self._killed[incarnation]
        return self._find(incarnation).tree()

    async def checkpoints(self, key: SessionKey | None = None) -> list[CheckpointInfo]:
        """The committed ones; with a ``key``, of that session."""
        return of_session(key, [info for info, _ in self.saved.values()])

    async def identity(self, checkpoint: str) -> Identity:
        """A login; ``NotFound`` without that checkpoint."""
        self._info(checkpoint)
        return Identity(api_token="secret", port=8888)

    # --- doing

    def begin_capture(
        self, incarnation: str, checkpoint: str, generation: int
    ) -> AsyncIterator[Event]:
        """Capture a session, attach to that capture, or repeat how it ended."""
        self._call_off_save(incarnation)
        known = self._known_save(incarnation, "capture", checkpoint)
        if known is not None:
            return known
        session = self._find(incarnation)
        if session.state not in {TreeState.RUNNING, TreeState.NAPPING}:
            raise _wrong(session, "be suspended now")
        session.state = TreeState.CAPTURING
        session.term, session.generation = self.term(), generation
        return self._begin(session, "capture", checkpoint).follow()

    def begin_save(
        self, incarnation: str, checkpoint: str, generation: int, name: str = ""
    ) -> AsyncIterator[Event]:
        """Save a session that goes on, attach to that, or repeat how it ended."""
        known = self._known_save(incarnation, "save", checkpoint)
        if known is not None:
            return known
        session = self._find(incarnation)
        if session.state not in {TreeState.RUNNING, TreeState.NAPPING}:
            raise _wrong(session, "be saved now")
        operation = session.operation = MemoryOperation("save", checkpoint)
        stamp = self.term(), generation
        work = self._save(session, operation, stamp, name)
        operation.task = asyncio.create_task(work)
        return operation.follow()

    def _known_save(
        self, incarnation: str, kind: str, checkpoint: str
    ) -> AsyncIterator[Event] | None:
        """Events of that capture or save, under way or ended; None: it has to begin."""
        known = self._attach(incarnation, kind, checkpoint)
        if known is not None:
            return known.follow()
        held = self.saved.get(checkpoint)
        mine = held is not None and held[0].incarnation == incarnation
        return _only(Event(checkpoint=held[0])) if held and mine else None

    async def _save(
        self, session: S, operation: MemoryOperation, stamp: tuple[int, int], name: str
    ) -> None:
        image = self.image(session)  # as it is at the beginning
        failure = await self._follow(self.capturing(session), operation)
        if failure is not None:
            operation.add(Event(failure=failure))
            return
        info = msgspec.structs.replace(
            self.info(session),
            id=operation.checkpoint,
            term=stamp[0],
            generation=stamp[1],
            goes_on=True,
            name=name,
        )
        self.keep(info, image)
        self._gpu_memory[info.id] = session.gpu_memory
        session.checkpoint, session.parent = "", info.id
        operation.add(Event(checkpoint=info))

    def _call_off_save(self, incarnation: str) -> None:
        """A save is in the way of nothing; the session goes on as it does."""
        running = self._running(incarnation)
        if running is not None and running.kind == "save":
            running.cancelled = True
            running.add(Event(failure=_cancelled()))
            if running.task is not None:
                running.task.cancel()

    def begin_restore(self, incarnation: str, checkpoint: str) -> AsyncIterator[Event]:
        """Restore a session, attach to that restore, or repeat how it ended."""
        there = self.places.get(incarnation)
        if there is not None and there.parent == checkpoint and there.is_back:
            return _only(Event(tree=there.tree()))
        known = self._attach(incarnation, "restore", checkpoint)
        if known is not None:
            return known.follow()
        session, info = self._find(incarnation), self._info(checkpoint)
        if session.state is not TreeState.HOLDING:
            raise _wrong(session, "take up a suspended session")
        if info.key != session.key:
            raise Refused(Reason.RENAMED, there=info.key, here=session.key)
        if any(self._uses(other, checkpoint) for other in self.places.values()):
            raise Refused(Reason.CHECKPOINT_BUSY)
        session.state = TreeState.RESTORING
        return self._begin(session, "restore", checkpoint).follow()

    def begin_nap(self, incarnation: str) -> AsyncIterator[Event]:
        """Move its GPU memory out, or attach to the nap that begins."""
        return self._begin_move(incarnation, "nap", TreeState.NAPPING)

    def begin_wake(self, incarnation: str) -> AsyncIterator[Event]:
        """Move it back, or attach to the wake under way."""
        return self._begin_move(incarnation, "wake", TreeState.RUNNING)

    async def follow_wake(self, incarnation: str) -> AsyncIterator[Event]:
        """Events of the wake under way, or of the next one, however late."""
        session = self._find(incarnation)
        while (operation := session.running) is None or operation.kind != "wake":
            await self._moved.wait()
        return operation.follow()

    def use(self, session: S) -> None:
        """Somebody sends something to a session, which wakes it without an order."""
        if session.state is TreeState.NAPPING and session.running is None:
            session.nap = None
            session.state = session.goes_on_as

    async def thaw(self, incarnation: str) -> Tree:
        """Let a captured session go on without its checkpoint; idempotent."""
        session = self._idle(incarnation)
        if session.state is TreeState.HOLDING:
            raise _wrong(session, "go on")
        if session.state is TreeState.CAPTURED:
            self.drop(session.checkpoint)
            operation = MemoryOperation("capture", session.checkpoint)
            self._fail(session, operation, session.goes_on_as, _cancelled())
            session.operation = operation
        return session.tree()

    async def release(self, incarnation: str, checkpoint: str) -> Tree:
        """End a captured session, if that checkpoint is its own; idempotent."""
        held = self.saved.get(checkpoint)
        mine = held is not None and held[0].incarnation == incarnation
        if incarnation not in self.places and held is not None and mine:
            return Tree(
                incarnation=incarnation,
                key=held[0].key,
                state=TreeState.GONE,
                init_pid=0,
                checkpoint=checkpoint,
                generation=held[0].generation,
            )
        session = self._idle(incarnation)
        captured = session.state is TreeState.CAPTURED
        if not (mine and captured and session.checkpoint == checkpoint):
            raise Refused(Reason.NOT_CAPTURED)
        self.end(incarnation)
        return _gone(session)

    async def kill(self, incarnation: str) -> Tree:
        """End a session, but not while it is captured; idempotent."""
        if incarnation not in self.places:
            return await self.tree(incarnation)
        session = self._find(incarnation)
        self._call_off_save(incarnation)
        running = session.running
        if running is not None and running.kind == "capture":
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)
        if running is not None and running.task is not None:
            running.cancelled = True
            await asyncio.wait({running.task})
        worked = session.state is not TreeState.HOLDING
        if worked and session.checkpoint not in self.saved:
            self.lost.append(session.contents)
        self.end(incarnation)
        self._killed[incarnation] = _gone(session)
        return self._killed[incarnation]

    async def cancel(self, incarnation: str) -> None:
        """Cancel a capture, nap or wake; where none runs there is nothing to do."""
        running = self._running(incarnation)
        if running is None:
            await self.tree(incarnation)
        elif running.kind in {"capture", "nap", "save", "wake"}:
            running.cancelled = True
        else:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)

    async def discard(self, checkpoint: str, *, runs: str = "") -> None:
        """Delete a checkpoint that no stopped session needs; idempotent."""
        if runs:
            session = self._find(runs)
            if not session.tree().lives:
                raise _wrong(session, "do without it")
        for session in self.places.values():
            stopped = session.state in {TreeState.CAPTURED, TreeState.RESTORING}
            if stopped and session.checkpoint == checkpoint:
                raise _wrong(session, "be discarded")
        self.drop(checkpoint)

    async def mark(self, checkpoint: str, said: Mark, word: int) -> None:
        """Note a word about a checkpoint, unless there is a later one; idempotent."""
        info = self._info(checkpoint)
        number, last = (self.term(), word), self.words.get(checkpoint, (0, -1))
        if number <= last and info.mark != said:
            raise Refused(Reason.FORMER_SERVICE, term=number[0], obeyed=last[0])
        self.words[checkpoint] = max(number, last)
        marked = msgspec.structs.asdict(said)
        info = msgspec.structs.replace(info, **marked, word=self.words[checkpoint])
        self.saved[checkpoint] = info, self.saved[checkpoint][1]

    def given(self, subject: str, order: AgentOrder) -> Any:
        """What the method of its kind makes of an order."""
        fields = {name: getattr(order, name) for name in order.__struct_fields__}
        del fields["hint"]
        return getattr(self, order.kind.replace("-", "_"))(subject, **fields)

    # --- what is shared

    def _find(self, incarnation: str) -> S:
        if incarnation not in self.places:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        return self.places[incarnation]

    def _info(self, checkpoint: str) -> CheckpointInfo:
        if checkpoint not in self.saved:
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return self.saved[checkpoint][0]

    def _running(self, incarnation: str) -> MemoryOperation | None:
        session = self.places.get(incarnation)
        return None if session is None else session.running

    def _idle(self, incarnation: str) -> S:
        """A session with which nothing is done now."""
        running = self._running(incarnation)
        if running is not None:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)
        return self._find(incarnation)

    def _attach(
        self, incarnation: str, kind: str, checkpoint: str
    ) -> MemoryOperation | None:
        """The same operation; None if it has to begin, as a restore that failed has."""
        session = self.places.get(incarnation)
        operation = None if session is None else session.operation
        if operation is None:
            return None
        if (operation.kind, operation.checkpoint) == (kind, checkpoint):
            failed = operation.done and operation.events[-1].failure is not None
            return None if failed and kind == "restore" else operation
        if not operation.done:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=operation.kind)
        return None

    def _uses(self, session: S, checkpoint: str) -> bool:
        """Whether a session's tree, stopped or running, stands for that checkpoint."""
        if session.parent == checkpoint and session.tree().lives:
            return True  # it runs on from there
        return session.checkpoint == checkpoint and session.state in {
            TreeState.CAPTURED,
            TreeState.RESTORING,
            TreeState.RUNNING,
            TreeState.NAPPING,
        }

    def _begin_move(
        self, incarnation: str, kind: str, wanted: TreeState
    ) -> AsyncIterator[Event]:
        session = self._find(incarnation)
        self._call_off_save(incarnation)
        running = session.running
        if running is not None and running.kind != kind:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=running.kind)
        if running is not None:
            return running.follow()
        if session.state is wanted:
            return _only(Event(tree=session.tree()))
        if session.state not in {TreeState.RUNNING, TreeState.NAPPING}:
            raise _wrong(session, f"{kind} now")
        operation = session.operation = MemoryOperation(kind, "")
        operation.task = asyncio.create_task(self._move(session, operation))
        self._moved.set()
        self._moved = asyncio.Event()
        return operation.follow()

    async def _move(self, session: S, operation: MemoryOperation) -> None:
        """A nap or a wake; one that fails leaves the session as it was."""
        naps = operation.kind == "nap"
        steps = self.napping(session) if naps else self.waking(session)
        failure = await self._follow(steps, operation)
        if naps and not session.gpu_memory:
            failure = codec.failure_of(Refused(Reason.GPU_UNUSED))
        if failure is not None:
            operation.add(Event(failure=failure))
            return
        session.nap = self._nap_of(session) if naps else None
        session.state = session.goes_on_as
        operation.add(Event(tree=session.tree()))

    def _nap_of(self, session: S) -> Nap:
        return Nap(begun=self.now(), gpus=[session.gpu()])

    def _begin(self, session: S, kind: str, checkpoint: str) -> MemoryOperation:
        session.checkpoint, session.failure = checkpoint, None
        operation = session.operation = MemoryOperation(kind, checkpoint)
        work = self._capture if kind == "capture" else self._restore
        operation.task = asyncio.create_task(work(session, operation))
        return operation

    async def _capture(self, session: S, operation: MemoryOperation) -> None:
        failure = await self._follow(self.capturing(session), operation)
        if failure is not None:
            self._fail(session, operation, session.goes_on_as, failure)
            return
        info = self.info(session)
        self.keep(info, self.image(session))
        self._gpu_memory[info.id] = session.gpu_memory
        session.state = TreeState.CAPTURED
        operation.add(Event(checkpoint=info))

    async def _restore(self, session: S, operation: MemoryOperation) -> None:
        failure = await self._follow(self.restoring(session), operation)
        if failure is not None:
            self._fail(session, operation, TreeState.HOLDING, failure)
            return
        self.fill(session, self.saved[operation.checkpoint][1])
        session.parent = operation.checkpoint
        session.gpu_memory = self._gpu_memory.get(operation.checkpoint, 0)
        session.nap = None
        session.state = session.goes_on_as
        operation.add(Event(tree=session.tree()))

    async def _follow(
        self, steps: AsyncIterator[Event], operation: MemoryOperation
    ) -> Failure | None:
        """Tell of the steps; why they did not come to their end, if so."""
        async for event in steps:
            if event.failure is not None:
                return event.failure
            if operation.cancelled:
                return _cancelled()
            operation.add(event)
        return None

    def _fail(
        self, session: S, operation: MemoryOperation, state: TreeState, failure: Failure
    ) -> None:
        session.state, session.failure = state, failure
        operation.add(Event(failure=failure))


async def _only(event: Event) -> AsyncIterator[Event]:
    yield event


def _cancelled() -> Failure:
    return codec.failure_of(RolledBack(Reason.CANCELLED))


def _wrong(session: MemorySession, action: str) -> Refused:
    return Refused(Reason.WRONG_PHASE, phase=session.state.value, action=action)


def _gone(session: MemorySession) -> Tree:
    return msgspec.structs.replace(session.tree(), state=TreeState.GONE, init_pid=0)
