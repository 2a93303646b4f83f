"""Samples one session: its processes through ``/proc``, its server through its API.

A value that does not come in time is ``None`` with the reason in ``problem``: never
zero, never idle. Requests carry ``no_track_activity`` so that watching a session never
looks like using it. The server of a stopped session is not called.

Answers of a session are bounded (``jupyter_api``, ``connections``), a look that blocks
takes one thread until it has ended, and a sample that fails fails alone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from jupyterhub_gpu_reclaim.common.errors import NotFound, ReclaimError
from jupyterhub_gpu_reclaim.common.models import KernelSample, Sample, TerminalSample
from jupyterhub_gpu_reclaim.linux import procfs
from jupyterhub_gpu_reclaim.sampling import jupyter_api, process_tree
from jupyterhub_gpu_reclaim.sampling.connections import MAX_FILES, Connections, Traffic
from jupyterhub_gpu_reclaim.sampling.gpu import samples_of
from jupyterhub_gpu_reclaim.sampling.scheduled_jobs import Scheduled, Schedulers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from datetime import datetime

    from tornado.httpclient import AsyncHTTPClient

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import GpuSample
    from jupyterhub_gpu_reclaim.sampling.gpu import CardUse
    from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
    from jupyterhub_gpu_reclaim.sampling.process_tree import SampleTarget


T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Seconds that one session has for all its answers together.
ANSWER_SECONDS = 5.0
#: Shortest time in seconds over which a card's use is a mean, however soon it is asked.
CARD_SECONDS = 5.0
#: Greatest age in seconds of a look at the cards that is shown to people.
FRESH_CARDS_SECONDS = 30.0
#: Notebooks asked for their last save, per sample; more are rare and cost the server.
MAX_NOTEBOOKS = 32
#: Characters of a kernel's name in a sample: the end of its notebook's path.
NAME_CHARACTERS = 256
#: Most characters of what a sample says is missing.
PROBLEM_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class _Answers:
    usage: process_tree.TreeUsage | None = None
    kernels: list[jupyter_api.Kernel] | None = None
    terminals: list[jupyter_api.Terminal] | None = None
    status: jupyter_api.Status | None = None
    notebooks: list[jupyter_api.NotebookSession] | None = None
    saved: float | None = None
    gpus: list[GpuSample] | None = None
    traffic: Traffic | None = None
    jupyter: bool = True  #: whether its server has Jupyter's API
    scheduled: Scheduled | None = None


class _Looks:
    """Runs looks that block: one at a time for each name, so that none piles up."""

    def __init__(self) -> None:
        self._under_way: set[Hashable] = set()

    async def take(self, name: Hashable, look: Callable[[], T], seconds: float) -> T:
        """Raise TimeoutError: it does not end in time, or the last one has not."""
        if name in self._under_way:
            raise TimeoutError("the last look at them has not ended")
        self._under_way.add(name)
        task = asyncio.ensure_future(asyncio.to_thread(look))
        task.add_done_callback(lambda done: self._note_end_of_look(name, done))
        try:
            return await asyncio.wait_for(asyncio.shield(task), seconds)
        except TimeoutError:
            raise TimeoutError("no answer in time") from None

    def _note_end_of_look(self, name: Hashable, done: asyncio.Future[T]) -> None:
        self._under_way.discard(name)
        if not done.cancelled():
            done.exception()  # raised above, if it was still awaited


@dataclass(frozen=True, slots=True)
class _Server:
    """A session's server, asked for one sample; ``problems`` are added to."""

    address: jupyter_api.ServerAddress
    client: AsyncHTTPClient
    known: dict[str, jupyter_api.TaggedAnswer] | None
    seconds: float
    problems: list[str]

    async def answers(self, schedulers: Schedulers, now: float) -> _Answers:
        kernels, terminals, status, (notebooks, saved), jobs = await asyncio.gather(
            self._ask("api/kernels", jupyter_api.KERNELS),
            # Without the extension there are known to be none.
            self._ask("api/terminals", jupyter_api.TERMINALS, absent=[]),
            self._ask("api/status", jupyter_api.Status),
            self._notebooks(),
            self._scheduled(schedulers, now),
        )
        if kernels is None and await self._is_another_program():
            return _Answers(kernels=[], terminals=[], jupyter=False)
        answers = _Answers(None, kernels, terminals, status, notebooks, saved)
        return replace(answers, scheduled=jobs)

    async def _scheduled(self, schedulers: Schedulers, now: float) -> Scheduled | None:
        try:
            return await schedulers.ask(self.address, self._get, now)
        except ReclaimError as error:
            self.problems.append(error.detail)
            return None

    async def _is_another_program(self) -> bool:
        """Whether the server is not Jupyter's: each of those tells its version."""
        try:
            version = await self._get("api", jupyter_api.Version)
        except (NotFound, jupyter_api.OtherAnswer):
            return True
        except ReclaimError:
            return False
        return not version.version

    async def _notebooks(
        self,
    ) -> tuple[list[jupyter_api.NotebookSession] | None, float | None]:
        try:
            async with asyncio.timeout(self.seconds):
                notebooks = await self._ask("api/sessions", jupyter_api.NOTEBOOKS)
                paths = [n.path for n in notebooks or [] if n.type == "notebook"]
                saves = await asyncio.gather(
                    *(self._last_saved(path) for path in paths[:MAX_NOTEBOOKS])
                )
        except TimeoutError:
            self.problems.append("api/sessions: no answer in time")
            return None, None
        return notebooks, max((save for save in saves if save), default=None)

    async def _last_saved(self, path: str) -> float | None:
        try:
            contents = await self._get(
                f"api/contents/{path}", jupyter_api.Contents, "content=0"
            )
        except ReclaimError:
            return None
        return jupyter_api.timestamp(contents.last_modified)

    async def _ask(self, path: str, kind: type[T], absent: T | None = None) -> T | None:
        try:
            return await self._get(path, kind)
        except ReclaimError as error:
            if isinstance(error, NotFound) and absent is not None:
                return absent
            self.problems.append(error.detail)
            return None

    async def _get(self, path: str, kind: type[T], query: str = "") -> T:
        return await jupyter_api.ask(
            self.client,
            self.address,
            path,
            kind,
            seconds=self.seconds,
            query=query,
            known=self.known,
        )


class Sampler:
    def __init__(
        self,
        clock: Clock,
        cards: Nvml,
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._clock = clock
        self._cards = cards
        self._looked_at_cards = clock.now()
        self._last_cards: list[CardUse] | None = None
        self.client: AsyncHTTPClient = jupyter_api.make_client()
        self._seconds = answer_seconds
        #: Last answers of each server, for the sessions that were sampled last.
        self._known: dict[
            jupyter_api.ServerAddress, dict[str, jupyter_api.TaggedAnswer]
        ] = {}
        self._schedulers = Schedulers()
        self._connections = Connections()
        #: Looks at processes, by incarnation, and at connections, by network namespace.
        self._looks = _Looks()

    async def sample_all(self, watched: list[SampleTarget]) -> list[Sample]:
        """Sample all at once; a slow one delays none of the others, none raises."""
        addresses = {each.address for each in watched if each.address is not None}
        self._known = {address: self._known.get(address, {}) for address in addresses}
        self._schedulers.keep(addresses)
        self._connections.keep([target.incarnation for target in watched])
        cards, traffic = await asyncio.gather(
            self._look_at_cards(), self._look_at_networks(watched)
        )
        return await asyncio.gather(
            *(self._sample_or_problem(target, cards, traffic) for target in watched)
        )

    async def _sample_or_problem(
        self,
        watched: SampleTarget,
        cards: list[CardUse] | None,
        traffic: Mapping[str, Traffic],
    ) -> Sample:
        try:
            return await self._sample(watched, cards, traffic)
        except Exception as error:  # noqa: BLE001 whatever it is, it is one session's
            _log.exception("%s cannot be sampled", watched.key)
            problem = f"unexpected: {type(error).__name__}"
            return _sum_up(watched, _Answers(gpus=None), self._clock.now(), [problem])

    async def _sample(
        self,
        watched: SampleTarget,
        cards: list[CardUse] | None,
        traffic: Mapping[str, Traffic],
    ) -> Sample:
        if watched.stopped:
            return _sum_up(watched, _Answers(), self._clock.now(), ["it is stopped"])
        problems: list[str] = []
        gpus = samples_of(cards, watched.pids)
        if gpus is None:
            problems.append("its GPU: no answer")
        measured = asyncio.create_task(self._measure(watched, problems))
        answers = _Answers()
        if watched.address is None:
            problems.append("the address of its server is not known")
        else:
            known = self._known.get(watched.address)
            server = _Server(
                watched.address, self.client, known, self._seconds, problems
            )
            answers = await server.answers(self._schedulers, self._clock.now())
            answers = replace(answers, traffic=traffic.get(watched.incarnation))
            if answers.traffic is None:
                problems.append(
                    f"its connections: no answer, or over {MAX_FILES} files"
                )
        answers = replace(answers, usage=await measured, gpus=gpus)
        return _sum_up(watched, answers, self._clock.now(), problems)

    async def _look_at_networks(
        self, watched: list[SampleTarget]
    ) -> dict[str, Traffic]:
        networks: dict[str, list[SampleTarget]] = {}
        for target in watched:
            network = procfs.link(target.init_pid, "ns/net")
            if network and target.address is not None and not target.stopped:
                networks.setdefault(network, []).append(target)

        async def look(
            network: str, targets: Sequence[SampleTarget]
        ) -> dict[str, Traffic]:
            try:
                return await self._looks.take(
                    network, lambda: self._connections.look(targets), self._seconds
                )
            except (OSError, ReclaimError) as error:
                _log.info("the connections of %s: %s", targets[0].key, error)
                return {}

        parts = await asyncio.gather(*(look(*each) for each in networks.items()))
        return {name: one for part in parts for name, one in part.items()}

    async def cards(self) -> list[CardUse] | None:
        """All cards as of some seconds ago; None if they do not answer."""
        # Only one look at a time is possible, so this does not look while samples do.
        age = self._clock.now() - self._looked_at_cards
        if self._last_cards is None or age > FRESH_CARDS_SECONDS:
            return await self._look_at_cards()
        return self._last_cards

    async def _look_at_cards(self) -> list[CardUse] | None:
        now = self._clock.now()
        since = min(self._looked_at_cards, now - CARD_SECONDS)
        look = asyncio.create_task(asyncio.to_thread(self._cards.measure, since))
        done, _ = await asyncio.wait({look}, timeout=self._seconds)
        if not done:
            return None
        self._looked_at_cards, self._last_cards = now, look.result()
        return self._last_cards

    async def _measure(
        self, watched: SampleTarget, problems: list[str]
    ) -> process_tree.TreeUsage | None:
        try:
            return await self._looks.take(
                watched.incarnation,
                lambda: process_tree.measure(
                    watched.init_pid, watched.root_pid, watched.pids
                ),
                self._seconds,
            )
        except (OSError, ValueError, IndexError) as error:
            what = str(error) if isinstance(error, TimeoutError) else ""
            problems.append(f"its processes: {what or type(error).__name__}")
            return None


def _sum_up(
    watched: SampleTarget, answers: _Answers, at: float, problems: list[str]
) -> Sample:
    usage, status, traffic = answers.usage, answers.status, answers.traffic
    cpu_work = usage.cpu_work if usage else None
    if usage is not None and not answers.jupyter:
        cpu_work = usage.cpu_work + usage.cpu_server  # its server works itself
    return Sample(
        incarnation=watched.incarnation,
        key=watched.key,
        pod=watched.pod,
        at=at,
        memory=usage.memory if usage else None,
        cpu_work=cpu_work,
        written=usage.written if usage else None,
        moved=traffic.moved if traffic else None,
        paged=_paged_bytes(answers),
        outside=traffic.outside if traffic else None,
        started=usage.started if usage else None,
        kernels=_kernels(answers),
        terminals=_terminals(answers),
        last_typed=usage.typed_elsewhere if usage else None,
        connections=status.connections if status else None,
        last_saved=_last_saved(answers),
        last_asked=_as_timestamp(status.gpu_reclaim_person_asked) if status else None,
        gpus=answers.gpus,
        culls_after=status.gpu_reclaim_culls_after if status else None,
        job_due=answers.scheduled.due if answers.scheduled else None,
        problem="; ".join(problems)[:PROBLEM_CHARACTERS],
        jupyter=answers.jupyter,
    )


def _paged_bytes(answers: _Answers) -> int | None:
    """Bytes that pages sent to programs, by the server and by connections."""
    # Each sees what the other does not, so both count: a websocket's messages twice. A
    # server that is not Jupyter's is such a program itself.
    if not answers.jupyter:
        return answers.traffic.moved if answers.traffic else None
    if answers.status is None or answers.traffic is None:
        return None
    return answers.traffic.paged + (answers.status.gpu_reclaim_paged or 0)


def _last_saved(answers: _Answers) -> float | None:
    changed = answers.status.gpu_reclaim_file_changed if answers.status else None
    known = [at for at in (answers.saved, _as_timestamp(changed)) if at is not None]
    return max(known, default=None)


def _kernels(answers: _Answers) -> list[KernelSample] | None:
    # Each has the name of its notebook if there is one.
    if answers.kernels is None:
        return None
    names = {
        notebook.kernel.id: notebook.path
        for notebook in answers.notebooks or []
        if notebook.kernel is not None and notebook.path
    }
    return [
        KernelSample(
            id=kernel.id,
            name=_shorten_name(names.get(kernel.id, kernel.name)),
            execution_state=kernel.execution_state,
            last_activity=jupyter_api.timestamp(kernel.last_activity),
            connections=kernel.connections,
            prompt_since=_as_timestamp(kernel.gpu_reclaim_prompt_since),
        )
        for kernel in {one.id: one for one in answers.kernels}.values()
    ] + _jobs_kernels(answers)


def _jobs_kernels(answers: _Answers) -> list[KernelSample]:
    """The kernels of scheduled jobs, which no list of kernels has."""
    # One that an earlier server left under way has ended.
    started = _as_timestamp(answers.status.started) if answers.status else None
    return [
        KernelSample(
            id=job.job_id,
            name=_shorten_name(f"of the scheduled job {job.name}"),
            execution_state="busy",
            last_activity=job.create_time / 1000,
        )
        for job in (answers.scheduled.running if answers.scheduled else [])
        if started is None or job.create_time / 1000 >= started
    ]


def _shorten_name(name: str) -> str:
    cut = len(name) > NAME_CHARACTERS
    return "…" + name[1 - NAME_CHARACTERS :] if cut else name


def _as_timestamp(moment: datetime | None) -> float | None:
    return None if moment is None else jupyter_api.timestamp(moment)


def _terminals(answers: _Answers) -> list[TerminalSample] | None:
    # The API does not tell which name has which tty. Both are counted up, so in order
    # they belong together; if the numbers differ (a shell has just closed one),
    # each gets the newest input of all, which errs on the side of use.
    if answers.terminals is None or answers.usage is None:
        return None
    names = sorted((t.name for t in answers.terminals), key=lambda n: (len(n), n))
    typed: list[float | None] = list(answers.usage.typed)
    if len(typed) != len(names):
        typed = [max(answers.usage.typed, default=None)] * len(names)
    return [
        TerminalSample(name=name, last_input=at)
        for name, at in zip(names, typed, strict=True)
    ]
