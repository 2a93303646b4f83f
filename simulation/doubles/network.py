"""The network between simulated programs: calls and streams that may be lost.

A call is carried to whatever program listens there when it arrives, runs as a task of
that program, and its answer is carried back. Either way may be slow, lost, or taken
twice; a program that ends breaks the calls it had in hand. The caller hears nothing but
an answer, an error in the other's own words (through ``common.codec``, as on the wire),
or ``Unreachable``. That is what the product's three HTTP clients make of a wire.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, Unreachable
from simulation.loop import Program, spawn

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Callable

    from jupyterhub_gpu_reclaim.common.reasons import Reason

#: Seconds that a call takes on a good day, one way.
QUICK = (0.0005, 0.004)
#: What is on its way belongs to no program.
NOBODY = Context()


class Weather:
    """What the network does to calls now; changed by faults."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lost = 0.0  #: share of calls, and of answers, that are lost
        self.doubled = 0.0  #: share of calls that arrive twice
        self.slow = 0.0  #: seconds that a call may take at most; 0: :data:`QUICK`
        self.holding = 0.0  #: seconds that an order to an agent takes at least; 0: none
        self.deaf: set[str] = set()  #: machines whose agents are not reached
        #: told of an error that the product has not foreseen
        self.unforeseen: Callable[[str], None] = print

    def delay(self) -> float:
        if self.slow and self.rng.random() < 0.3:
            return self.rng.uniform(0.0, self.slow)
        return self.rng.uniform(*QUICK)

    def hold(self) -> float:
        """Seconds for which an order to an agent is held up."""
        if not self.holding:
            return 0.0
        return self.rng.uniform(self.holding, 2 * self.holding)

    def loses(self) -> bool:
        return bool(self.lost) and self.rng.random() < self.lost

    def doubles(self) -> bool:
        return bool(self.doubled) and self.rng.random() < self.doubled

    def parts(self, server: Server) -> bool:
        agent = server.program.name.startswith("the agent")
        return agent and server.program.machine in self.deaf


class Server:
    """What a program answers: an object whose methods are the calls."""

    def __init__(self, program: Program, api: Any) -> None:
        self.program = program
        self.api = api


class _Call(NamedTuple):
    answer: asyncio.Future[Any]
    name: str
    args: tuple[Any, ...]
    more: dict[str, Any]


class Wire:
    """One program's way to another.

    Args:
        weather: of the network.
        program: whose calls these are.
        find: returns who listens at the address now; None: nobody.
        silence: the reason that the caller hears when there is no answer.
    """

    def __init__(
        self,
        weather: Weather,
        program: Program,
        find: Callable[[], Server | None],
        silence: Reason,
    ) -> None:
        self._weather = weather
        self._program = program
        self._find = find
        self._silence = silence

    async def ask(
        self, name: str, *args: Any, limit: float, order: bool = False, **more: Any
    ) -> Any:
        """One call and its answer; an order to an agent may be held up.

        Raises:
            Unreachable: no answer in time; it may have been carried out or not.
            ReclaimError: the other's own.
        """
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        call = _Call(answer, name, args, more)
        for _ in range(1 + self._weather.doubles()):
            delay = self._weather.delay() + (self._weather.hold() if order else 0.0)
            loop.call_later(delay, self._deliver, call, context=NOBODY)
        try:
            async with asyncio.timeout(limit):
                return await answer
        except TimeoutError:
            raise self._unreachable(f"{name}: no answer in {limit:g} s") from None

    def _deliver(self, call: _Call) -> None:
        server = self._find()
        if server is None or not server.program.alive:
            _fail(call.answer, self._unreachable(f"{call.name}: nobody listens"))
            return
        if self._weather.loses() or self._weather.parts(server):
            return
        server.program.at_end.append(lambda: self._break(call))
        spawn(server.program, self._serve(call, server))

    def _break(self, call: _Call) -> None:
        _fail(call.answer, self._unreachable(f"{call.name}: the connection broke"))

    async def _serve(self, call: _Call, server: Server) -> None:
        kind, value = await self._result(server.api, call.name, call.args, call.more)
        delay = self._weather.delay()
        loop = asyncio.get_running_loop()
        loop.call_later(
            delay, self._reply, call.answer, server, kind, value, context=NOBODY
        )

    def _reply(
        self, answer: asyncio.Future[Any], server: Server, kind: str, value: Any
    ) -> None:
        if self._weather.loses() or self._weather.parts(server) or answer.done():
            return
        if kind == "error":
            _fail(answer, value)
        else:
            answer.set_result(value)

    async def _result(
        self, api: Any, name: str, args: Any, more: Any
    ) -> tuple[str, Any]:
        try:
            return "answer", await getattr(api, name)(*args, **more)
        except ReclaimError as error:
            return "error", _as_sent(error)
        except Exception as error:  # noqa: BLE001 - status 500, without our words
            self._weather.unforeseen(f"{name}: {error!r}")
            return "error", self._unreachable(f"{name}: status 500")

    async def stream(
        self, name: str, /, *args: Any, silence: float, **more: Any
    ) -> AsyncGenerator[Any, None]:
        """A call that is answered by many lines.

        Raises:
            Unreachable: the stream broke; what it is about may go on over there.
        """
        weather = self._weather
        await asyncio.sleep(weather.delay())
        server = self._find()
        if server is None or not server.program.alive:
            raise self._unreachable(f"{name}: nobody listens")
        lines: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        broken = ("error", self._unreachable(f"{name}: the stream broke"))
        server.program.at_end.append(lambda: lines.put_nowait(broken))
        if not weather.loses():
            spawn(server.program, _serve(lines, server.api, name, args, more))
        while True:
            kind, value = await self._next(lines, silence)
            await asyncio.sleep(weather.delay() / 4)
            if weather.loses() or weather.parts(server):
                kind, value = broken
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value

    async def _next(
        self, lines: asyncio.Queue[tuple[str, Any]], silence: float
    ) -> tuple[str, Any]:
        try:
            async with asyncio.timeout(silence):
                return await lines.get()
        except TimeoutError:
            return "error", self._unreachable("silence")

    def _unreachable(self, detail: str) -> Unreachable:
        return Unreachable(self._silence, detail=detail)


def _fail(answer: asyncio.Future[Any], error: ReclaimError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # whoever waits hears it; nobody else has to


async def _serve(
    lines: asyncio.Queue[tuple[str, Any]], api: Any, name: str, args: Any, more: Any
) -> None:
    try:
        found = getattr(api, name)(*args, **more)
        events = await found if asyncio.iscoroutine(found) else found
        async for event in events:
            lines.put_nowait(("line", event))
    except ReclaimError as error:
        lines.put_nowait(("error", _as_sent(error)))
    lines.put_nowait(("end", None))


def _as_sent(error: ReclaimError) -> ReclaimError:
    """The error as the other side makes it of status and body."""
    kind = codec.BY_STATUS.get(error.status, Refused)
    return codec.error_of(codec.failure_of(error), kind)
