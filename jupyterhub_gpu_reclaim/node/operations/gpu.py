"""Empties a session's GPUs before a capture, and fills them when the session continues.

The record of the operation holds what is needed to undo it before it begins, and the
driver knows how far it came; so every call may be repeated after a crash. It knows
nothing of the store. The calls to the driver are in ``checkpoint.gpu.cuda``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.gpu import cuda
from jupyterhub_gpu_reclaim.checkpoint.gpu import survey as gpu_survey
from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import DriverError
from jupyterhub_gpu_reclaim.checkpoint.gpu.visible_devices import visible_to
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, RolledBack
from jupyterhub_gpu_reclaim.common.findings import finding, refuse_fatal
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import size
from jupyterhub_gpu_reclaim.linux import cgroups, host, processes, procfs
from jupyterhub_gpu_reclaim.node.operations.card_room import CardRoom
from jupyterhub_gpu_reclaim.node.requirements import (
    GpuCard,
    Gpus,
    GpuUse,
    compare_gpus,
    move_pairs,
    plan_moves,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from jupyterhub_gpu_reclaim.checkpoint.cancel import Cancel
    from jupyterhub_gpu_reclaim.checkpoint.gpu.driver import Driver, Memory
    from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import Survey
    from jupyterhub_gpu_reclaim.common.models import Finding, GpuSample, Shortage
    from jupyterhub_gpu_reclaim.linux.cgroups import LimitRecord
    from jupyterhub_gpu_reclaim.linux.processes import Process, Snapshot
    from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
    from jupyterhub_gpu_reclaim.node.session import Session
    from jupyterhub_gpu_reclaim.sampling.gpu import CardUse, ProcessUse
    from jupyterhub_gpu_reclaim.sampling.nvml import Nvml

_log = logging.getLogger(__name__)

#: Seconds between two looks for room.
ROOM_PAUSE = 0.5
_LOOK_SECONDS = 10.0
_LOOK_PAUSE = 0.01
#: Looks for stale children until there are none: one that forks on and on is refused.
_ROUNDS = 20
#: How long a shell may take to stop, before its programs are stopped all the same: it
#: may wait for a child of vfork(2), which no signal ends.
_SHELL_SECONDS = 2.0


class Accelerator:
    """The GPUs of this machine.

    ``visible`` tells which cards a process's container has, None for all.
    """

    def __init__(
        self,
        driver: Driver,
        nvml: Nvml,
        limits: TimeLimits,
        *,
        visible: Callable[[int], Collection[str] | None] = visible_to,
    ) -> None:
        self._driver = driver
        self.cards = nvml
        self.limits = limits
        self._visible = visible
        self.room = CardRoom()

    def node_findings(self) -> Iterator[Finding]:
        """Find what an administrator should know of the GPUs; nothing is fatal."""
        # It starts the driver's helper, so that the first session need not wait for it.
        setting = host.huge_pages()
        if setting not in ("", "always") and self._driver.present():
            yield finding(Reason.GPU_SMALL_PAGES, fatal=False, setting=setting)

    def survey(self, snapshot: Snapshot) -> Survey:
        """Find which processes of a tree hold a GPU; touches nothing.

        Raises:
            Refused: the driver does not answer (``gpu_driver_silent``); so do the
                next ones.
        """
        try:
            return gpu_survey.survey(self._driver, snapshot)
        except DriverError as error:
            raise Refused(Reason.GPU_DRIVER_SILENT, detail=str(error)) from error

    def findings(self, survey: Survey, snapshot: Snapshot) -> Iterator[Finding]:
        """Find what keeps a tree's GPUs from being saved now; touches nothing."""
        for process in survey.stopped:
            yield finding(Reason.GPU_STOPPED, **process.facts)
        # One that the driver does not know may be so because of such company.
        concerned = (*survey.users, *survey.others)
        cards: list[CardUse] = []
        if survey.users:
            cards = self._look()
        elif concerned:
            cards = self.cards.measure(time.time()) or []
        shared = {use.pid for card in cards for use in card.processes or () if use.mps}
        yield from gpu_survey.examine_clients(concerned, shared)
        for card in cards:
            if card.divided:
                yield finding(Reason.GPU_MIG, card=card.name)
        yield from gpu_survey.examine_sharing(
            self._driver, survey.users, snapshot, _counted(cards)
        )

    def describe(self, survey: Survey) -> Gpus | None:
        """GPUs of the session, and its memory there; None where it has none.

        Raises:
            Refused: a card does not report its users (``gpu_driver_silent``), so how
                much memory will be needed is not known.
        """
        if not survey.users:
            return None
        inner = {user.pid: user.ns_pid for user in survey.users}
        cards = self._look()
        if any(card.processes is None for card in cards):
            raise Refused(Reason.GPU_DRIVER_SILENT)
        uses = [
            GpuUse(pid=inner[use.pid], uuid=card.uuid, bytes=_at_most(use, card))
            for card in cards
            for use in card.processes or []
            if use.pid in inner
        ]
        return Gpus(
            driver=cuda.driver_version(),
            cards=self._cards(survey.users[0].pid, {use.uuid for use in uses}),
            users=sorted(inner.values()),
            uses=uses,
        )

    def held(self, gpus: Gpus | None, snapshot: Snapshot) -> Sequence[GpuSample]:
        """The cards on which a session had memory, for its checkpoint's record."""
        # ``gpus`` is what :meth:`describe` said; the demo looks at the tree.
        del snapshot
        return gpus.held() if gpus else ()

    def empty(
        self,
        look: Callable[[], Snapshot],
        survey: Survey,
        limit: LimitRecord,
        cancel: Cancel | None = None,
        standing: Callable[[], None] = lambda: None,
    ) -> None:
        """Move its GPU memory into its processes', so that nothing holds a GPU.

        Forked children have given up what they inherited, also those forked since the
        survey. ``standing`` is called before any memory moves; after an error
        :meth:`fill` takes back what was done.
        """

        def settle() -> None:
            self._settle(look, users, shells, cancel)
            standing()

        cgroups.lift_memory_limit(limit)
        users = survey.users
        shells = _shells(look(), users)
        for shell in shells:
            processes.stop(shell, _SHELL_SECONDS)
        cuda.empty(
            self._driver,
            users,
            lock_seconds=self.limits.gpu_lock,
            seconds=self.limits.dump,
            settle=settle,
            cancel=cancel,
        )
        self.refuse_holders(look())

    def without_memory(self, survey: Survey) -> list[Process]:
        """Users that only ask how a GPU is (NVML), and have nothing on it.

        Raises:
            Refused: the driver does not answer (``gpu_driver_silent``).
        """
        users = survey.users
        memory: Mapping[int, Memory] = {}
        # Where it does not tell: by the thread that moves memory.
        with contextlib.suppress(DriverError):
            memory = self._driver.memory([one.pid for one in users])
        try:
            return [
                one
                for one in users
                if (one.pid in memory and not memory[one.pid])
                or self._driver.thread(one.pid) is None
            ]
        except DriverError as error:
            raise Refused(Reason.GPU_DRIVER_SILENT, detail=str(error)) from error

    def to_stop(self, survey: Survey, snapshot: Snapshot) -> list[Process]:
        """Processes that :meth:`empty` stops: the users, and the shells above them."""
        # A shell would take the terminal away from its program when that stops.
        return [*_shells(snapshot, survey.users), *survey.users]

    def refuse_holders(self, snapshot: Snapshot) -> None:
        """Check that no process of an emptied session holds a GPU.

        Raises:
            RolledBack: a process has begun to use one (``gpu_begun``).
        """
        for process in snapshot.processes:
            if gpu_survey.held_by(process.pid):
                raise RolledBack(Reason.GPU_BEGUN, **process.facts)

    def _settle(
        self,
        look: Callable[[], Snapshot],
        users: Sequence[Process],
        shells: Sequence[Process],
        cancel: Cancel | None,
    ) -> None:
        """Check the tree again now that its GPU users are held, with their devices."""
        # What happened since the survey shows here: none of them can fork any more,
        # nor open another process's memory.
        for _ in range(_ROUNDS):
            snapshot = look()
            now = gpu_survey.survey(self._driver, snapshot)
            _refuse_new(now, users, shells)
            if not now.stale:
                break
            # One that forks meanwhile hands on what it still had: hence the next look.
            for child in now.stale:
                if cancel is not None and cancel.is_set:
                    raise ReclaimError(Reason.CANCELLED)
                cuda.give_up(child)
        else:
            raise ReclaimError(Reason.GPU_STALE_CHILD, **now.stale[0].facts)
        counted = _counted(self._look())
        shared = gpu_survey.examine_sharing(self._driver, users, snapshot, counted)
        refuse_fatal(shared, ReclaimError)

    def compare(self, gpus: Gpus | None, init_pid: int) -> list[Finding]:
        """Why a session's GPUs cannot be filled under that init; touches nothing."""
        # As many cards of each kind have to be there, with as much free memory.
        if gpus is None:
            return []
        if not self._driver.present():
            return list(compare_gpus(gpus, "", [], {}))
        free = _free(self._look())
        return list(
            compare_gpus(gpus, cuda.driver_version(), self._cards(init_pid), free)
        )

    def claim(
        self, gpus: Gpus, snapshot: Snapshot, claim: object, waker: Session
    ) -> Shortage | None:
        """Keep the room that a wake needs, or say what it lacks; waits for nothing."""
        # The claim is for :meth:`fill`, or to be released.
        cards = self._look()
        needed = self._needed(gpus, snapshot, self._moves(gpus, snapshot, cards))
        return self.room.promise(claim, needed, cards, time.monotonic(), waker)

    def fill(
        self,
        gpus: Gpus | None,
        limit: LimitRecord,
        snapshot: Snapshot,
        cancel: Cancel | None = None,
        claim: object = None,
    ) -> None:
        """Give a session its GPU memory back. Idempotent.

        No process is continued: what is stopped stays so. Without a ``claim`` room is
        waited for, until the cancel.

        Raises:
            ReclaimError: there is no room now (``gpu_memory``), or the driver cannot
                (``gpu_stuck``), or it was cancelled.
        """
        if gpus is None:
            return
        users = [p for p in snapshot.processes if p.ns_pid in gpus.users]
        moves = self._moves(gpus, snapshot, self._look())
        mine = claim or object()
        try:
            if claim is None:
                self._await_room(self._needed(gpus, snapshot, moves), mine, cancel)
            cuda.fill(
                self._driver, users, seconds=self.limits.dump, moves=move_pairs(moves)
            )
        finally:
            self.room.release(mine)
        if not cgroups.restore_memory_limit(limit):
            _log.warning(
                "- memory limit %s stays off: more than that is in use", limit.file
            )

    def close(self) -> None:
        self._driver.close()
        self.cards.close()

    def _moves(
        self, gpus: Gpus, snapshot: Snapshot, cards: Sequence[CardUse]
    ) -> dict[str, str]:
        here = self._cards(snapshot.init.pid)
        return plan_moves(gpus.cards, here, _free(cards)) or {}

    @staticmethod
    def _needed(gpus: Gpus, snapshot: Snapshot, moves: dict[str, str]) -> Counter[str]:
        # The driver cannot be asked about stopped ones, but the kernel can.
        emptied = {
            process.ns_pid
            for process in snapshot.processes
            if process.ns_pid in gpus.users and not gpu_survey.held_by(process.pid)
        }
        needed: Counter[str] = Counter()
        for uuid, count in gpus.needed(emptied).items():
            needed[moves.get(uuid, uuid)] += count
        return needed

    def _await_room(
        self, needed: Counter[str], claim: object, cancel: Cancel | None
    ) -> None:
        """Wait for memory: a driver that runs out of it midway loses the process."""
        deadline = time.monotonic() + self.limits.room
        while short := self.room.promise(claim, needed, self._look(), time.monotonic()):
            if cancel is not None:
                cancel.check()
            if time.monotonic() > deadline:
                raise no_room(short)
            time.sleep(ROOM_PAUSE)  # memory comes free without a word

    def _look(self) -> list[CardUse]:
        """The cards now; Refused: no answer, from which nothing may be concluded."""
        deadline = time.monotonic() + _LOOK_SECONDS
        while (cards := self.cards.measure(time.time())) is None:
            if time.monotonic() > deadline:
                raise Refused(Reason.GPU_DRIVER_SILENT)
            time.sleep(_LOOK_PAUSE)
        return cards

    def _cards(self, pid: int, used: Collection[str] = ()) -> list[GpuCard]:
        """The cards of the container that a process lives in, and those it uses."""
        try:
            cards = self._driver.cards()
        except DriverError as error:
            raise ReclaimError(Reason.GPU_DRIVER_SILENT, detail=str(error)) from error
        its = self._visible(pid)
        return [
            GpuCard(uuid=card.uuid, name=card.name)
            for card in cards
            if its is None or card.uuid in its or card.uuid in used
        ]


def _free(cards: Iterable[CardUse]) -> dict[str, int | None]:
    return {card.uuid: card.free for card in cards}


def no_room(shortage: Shortage) -> ReclaimError:
    card = shortage.cards[0]
    return ReclaimError(
        Reason.GPU_MEMORY,
        card=card.name or card.uuid,
        needed=size(card.needed),
        free=size(card.free),
    )


def _at_most(use: ProcessUse, card: CardUse) -> int:
    """Bytes that a process has on a card, at most; Refused: not even that is known."""
    if use.memory is not None:
        return use.memory
    if card.total is None:
        raise Refused(Reason.GPU_DRIVER_SILENT)
    return card.total - (card.free or 0)


def _refuse_new(
    now: Survey, users: Sequence[Process], shells: Sequence[Process]
) -> None:
    """Check that only the held processes and their stale children hold a GPU.

    Raises:
        ReclaimError: another process does (``gpu_begun``, ``gpu_stopped``).
    """
    known = {process.pid for process in users}
    new = [user for user in now.users if user.pid not in known]
    for process in (*new, *now.others):
        raise RolledBack(Reason.GPU_BEGUN, **process.facts)
    ours = {process.pid for process in shells}
    for process in now.stopped:
        if process.pid not in ours or gpu_survey.held_by(process.pid):
            raise ReclaimError(Reason.GPU_STOPPED, **process.facts)


def _counted(cards: Sequence[CardUse]) -> set[int]:
    """Host pids of all that have memory of a card, as far as it tells."""
    return {use.pid for card in cards for use in card.processes or () if use.memory}


def _shells(snapshot: Snapshot, users: Sequence[Process]) -> list[Process]:
    """Processes above the users that share a terminal with them, uppermost first."""
    by_pid = {process.pid: process for process in snapshot.processes}
    found: dict[int, Process] = {}
    for user in users:
        above = by_pid.get(user.ppid)
        while (
            above is not None
            and above not in (snapshot.server, snapshot.root)
            and procfs.terminal(above.pid)
        ):
            found[above.pid] = above
            above = by_pid.get(above.ppid)
    mine = {user.pid for user in users}
    return [p for p in snapshot.processes if p.pid in found and p.pid not in mine]
