"""Runtime state of a session: sampled, decided, announced; in memory only.

It is found out again after a restart. Also here: live updates, to many readers. All of
it is bounded: a reader that is too slow is dropped. No decision depends on those.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import (
        Decision,
        Event,
        Failure,
        GpuSample,
        Mark,
        Nap,
        Sample,
        SessionKey,
        SessionView,
        Shortage,
        Step,
        Tree,
        Usage,
        Waiting,
    )
    from jupyterhub_gpu_reclaim.controlplane.session import SessionRow
    from jupyterhub_gpu_reclaim.policy.probe import Probed
    from jupyterhub_gpu_reclaim.sampling.window import Window


@dataclass(frozen=True)
class NapTrouble:
    failure: Failure
    failures: int  #: naps failed in a row
    until: float | None  #: no nap by policy before; None: it was a wake

    @property
    def is_short(self) -> bool:
        """Whether nothing has failed, but a nap was over too soon."""
        return bool(self.failure.code == Reason.NAP_SHORT.value)


@dataclass(slots=True, eq=False)
class Runtime:
    # Of one incarnation, and forgotten with it:
    #: recent samples, and their newest sum
    window: Window | None = None
    usage: Usage | None = None
    sample: Sample | None = None  #: the last of them
    probed: Probed | None = None  #: what the administrator's probe said last
    napping: Tree | None = None  #: its tree, while programs of it nap
    nap_trouble: NapTrouble | None = None  #: failure of its last nap or wake

    #: when its sample was asked for (monotonic), if it is of the agent's last answer
    sample_asked: float = -math.inf
    decisions: list[Decision] = field(default_factory=list)  #: the deciding one first
    nap_decision: Decision | None = None  #: decision whether it naps by itself
    suspends_at: float | None = None  #: if it is warned: when it goes

    #: number of sessions waiting for a GPU, if it was selected to go for one of them
    wanted: int = 0
    goes_for: SessionKey | None = None  #: the session for which it was selected to go
    #: GPUs that others have released for it while it waits, and the time of the last
    freed: tuple[int, float] = (0, 0.0)
    waiting: Waiting | None = None  #: its place in the GPU queue
    place_told: str = ""  #: the place that readers were told last
    #: since when its resume, which has its place, waits for memory of a GPU
    lacks_memory_since: float | None = None

    #: whether agent, store and Hub show it as the journal has it
    compared: bool = False
    #: its checkpoints deleted since the store was last listed
    deleted: frozenset[str] = frozenset()
    #: words about its checkpoints that the store has taken since it was last listed
    told: dict[str, Mark] = field(default_factory=dict)
    #: whether it was deleted while suspended, which the Hub has not been told
    end_untold: bool = False
    #: incarnations whose end was ordered and not answered (``taking.py``)
    ending: frozenset[str] = frozenset()
    #: an odd state, and since when it has lasted (monotonic)
    odd: tuple[str, float] | None = None
    operation: OperationEvents | None = None  #: the last capture or restore
    napping_seen: float = 0.0  #: when its agent told of that (monotonic)
    #: the waking session for which it was selected to nap
    makes_room_for: SessionKey | None = None
    passed_over: float | None = None  #: until when it is not selected (monotonic)
    #: GPU memory that is being moved out, by our order
    moving_out: list[GpuSample] | None = None
    waking_until: float | None = None  #: when its memory is expected to be back
    save_again: float = 0.0  #: until when no rule saves it again
    saves_failed: int = 0  #: in a row

    def begin_anew(self) -> None:
        """Forget what was found out of another incarnation."""
        self.window = self.usage = self.sample = self.probed = None
        self.napping = self.nap_trouble = None

    def phase(self, row: SessionRow) -> Phase:
        """Its phase for people and policies: whether it is warned stands here alone."""
        warned = row.phase.live and self.suspends_at is not None
        return Phase.WARNED if warned else row.phase

    @property
    def cards(self) -> list[GpuSample]:
        return (self.sample.gpus or []) if self.sample is not None else []

    @property
    def nap(self) -> Nap | None:
        return self.napping.nap if self.napping is not None else None

    @property
    def shortage(self) -> Shortage | None:
        return self.napping.shortage if self.napping is not None else None

    @property
    def cards_or_nap(self) -> list[GpuSample]:
        return self.cards or (self.nap.gpus if self.nap is not None else [])

    @property
    def gpus_to_free(self) -> list[GpuSample]:
        """A pod holds its GPUs while it naps; a nap frees a machine's own cards."""
        in_pod = self.napping is not None and bool(self.napping.pod)
        return self.cards_or_nap if in_pod else self.cards

    @property
    def nap_failure(self) -> Failure | None:
        """The failure for people: a nap that was over soon is none."""
        trouble = self.nap_trouble
        return None if trouble is None or trouble.is_short else trouble.failure

    @property
    def wake_failed(self) -> bool:
        return self.nap_trouble is not None and self.nap_trouble.until is None


#: Most changes that a reader may lag behind before it is dropped.
READER_LIMIT = 256
#: Most steps of an operation that are kept: half an hour at two a second. Its end is
#: always told.
EVENT_LIMIT = 4096


class Broadcast:
    def __init__(self) -> None:
        self._readers: set[asyncio.Queue[SessionView | None]] = set()

    def publish(self, value: SessionView) -> None:
        for queue in list(self._readers):
            if queue.full():
                self._drop(queue)
            else:
                queue.put_nowait(value)

    async def read(self) -> AsyncIterator[SessionView]:
        """Yield everything from now on; ends when this reader is too slow."""
        queue: asyncio.Queue[SessionView | None] = asyncio.Queue(READER_LIMIT)
        self._readers.add(queue)
        try:
            while (value := await queue.get()) is not None:
                yield value
        finally:
            self._readers.discard(queue)

    def _drop(self, queue: asyncio.Queue[SessionView | None]) -> None:
        self._readers.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


class OperationEvents:
    """Events of one capture or restore, for readers that come late or again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self.ended = False

    def add(self, event: Event) -> None:
        """Take the next event; the one that is not a step is the last."""
        full = event.step is not None and len(self._events) >= EVENT_LIMIT
        if self.ended or full:
            return
        self._events.append(event)
        self.ended = event.step is None
        self._news.set()
        self._news = asyncio.Event()

    @property
    def succeeded(self) -> bool:
        return self.ended and self._events[-1].failure is None

    @property
    def tree(self) -> Tree | None:
        return self._events[-1].tree if self.ended else None

    def steps(self) -> list[Step]:
        """Return the newest state of every step, in the order in which they began."""
        latest: dict[str, Step] = {}
        for event in self._events:
            if event.step is not None:
                latest[event.step.step] = event.step
        return list(latest.values())

    async def read(self) -> AsyncIterator[Event]:
        """Yield all events, from the first to the last one."""
        at = 0
        while True:
            news = self._news
            while at < len(self._events):
                yield self._events[at]
                at += 1
            if self.ended:
                return
            await news.wait()


class ChangeSignal:
    def __init__(self) -> None:
        self._news = asyncio.Event()

    def touch(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        try:
            async with asyncio.timeout(limit):
                while not condition():
                    await self._news.wait()
        except TimeoutError:
            return condition()
        return True
