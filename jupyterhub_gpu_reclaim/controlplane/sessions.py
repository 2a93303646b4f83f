"""Every session's row, its changes, and its views.

A change of phase goes through the phase table, is written to the journal together with
its audit line and with what that means for its checkpoints (``retention.py``), and is
then told to readers. It never calls the agent or the Hub. Other modules write tables of
their own straight to the journal.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common.auth.principals import OURSELVES
from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import (
    AuditLine,
    CheckpointInfo,
    Decision,
    Event,
    Failure,
    Finding,
    GpuSample,
    Phase,
    SessionKey,
    SessionPolicy,
    SessionView,
    Suspension,
    Tree,
    Waiting,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import (
    accounting,
    retention,
    schema,
    session,
    views,
)
from jupyterhub_gpu_reclaim.controlplane.accounting import Counters
from jupyterhub_gpu_reclaim.controlplane.drains import Drains
from jupyterhub_gpu_reclaim.controlplane.runtime import (
    Broadcast,
    ChangeSignal,
    OperationEvents,
    Runtime,
)
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import (
    CheckpointRow,
    Intent,
    SessionEvent,
    SessionRow,
    failure_of,
)
from jupyterhub_gpu_reclaim.controlplane.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.controlplane.interfaces import Agent, Hub
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal
    from jupyterhub_gpu_reclaim.controlplane.phase import Observed


_log = logging.getLogger(__name__)

#: Actor in the audit when no person asked.
SERVICE = OURSELVES
#: The beginning of a suspend, and an end that goes back to what is saved.
_CAUSES = {SessionEvent.SUSPEND, SessionEvent.LOST}


class Sessions:
    # Given by the controller, for whoever works on sessions; nothing here calls them.
    agent: Agent
    hub: Hub
    new_id: Callable[[], str]  #: makes ids for checkpoints

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: Settings | None = None,
        policies: Callable[[SessionKey], SessionPolicy] | None = None,
    ) -> None:
        settings = settings or Settings()
        self.journal = journal
        self.clock = clock
        self.counters = Counters()
        #: runtime state of every session that anything is remembered of
        self.runtimes: dict[SessionKey, Runtime] = defaultdict(Runtime)
        self.policies = policies or (lambda _: SessionPolicy())
        self.settings = settings
        #: nodes that are to be free of sessions
        self.drains = Drains(journal, clock, self._look_at_node)
        self.silences: Mapping[str, Finding] = {}  #: why nodes do not answer, by name
        #: when the last samples came, in seconds since the epoch
        self.sampled: float | None = None
        #: the highest generation known under a name, or given out by this service
        self._generations: dict[SessionKey, int] = {}
        #: numbers of this service's words about checkpoints, so that a late one does
        #: not count
        self.words = itertools.count(1)
        #: has a worker look at a session
        self.look: Callable[[SessionKey], None] = lambda _: None
        self._views = Broadcast()
        #: every change of a view, from now on
        self.changes = self._views.read
        self._changed = ChangeSignal()

    # --- rows
    def row(self, key: SessionKey) -> SessionRow:
        """Return the journal's row, or a fresh one (whose ``since`` is 0)."""
        return self.journal.session(key) or SessionRow(key=key)

    def runtime(self, key: SessionKey) -> Runtime:
        return self.runtimes[key]

    def saved_every(self, key: SessionKey) -> float:
        set_to = self.policies(key).save_every
        return self.settings.save_every if set_to is None else set_to

    def apply(
        self,
        key: SessionKey,
        event: SessionEvent,
        *,
        by: str = SERVICE,
        failure: Failure | None = None,
        why: Decision | None = None,
        note: str = "",
        checkpoints: Iterable[CheckpointRow] = (),
        **changes: Any,
    ) -> SessionRow:
        """Apply an event to a session: phase table, journal, audit, readers.

        ``failure`` is for the page and the audit; None clears the last one. ``why``
        (the policy's reason) and ``note`` are for the audit alone. ``checkpoints`` are
        found, or have other words on them.

        Raises:
            Refused: the phase table does not allow it; nothing is changed.
            StoreError: the journal could not be written; nothing is changed.
        """
        before, now = self.row(key), self.clock.now()
        row = msgspec.structs.replace(
            before, failure=failure and self.timed(failure), **changes
        )
        phase = session.advance(before.phase, event, saved=bool(row.checkpoint))
        moved = phase is not before.phase or not before.since
        row = msgspec.structs.replace(
            row, phase=phase, since=now if moved else before.since
        )
        void = session.ended(event, before, row)
        void = {name: empty for name, empty in void.items() if name not in changes}
        row = msgspec.structs.replace(row, **void)
        reason = why or failure
        told = (reason.message, reason.code) if reason else (note,)
        audit = self.audit_line(key, by, event.name.lower(), *told)
        if event in _CAUSES:
            row = msgspec.structs.replace(row, cause=audit)
        accounting.took(self.counters, before, row, now)
        reclaimed = self._reclaimed(before, now, row.phase)
        self.journal.save(row, audit, self._kept(row, checkpoints), reclaimed)
        _log.info(
            "%s: %s -> %s (%s by %s)%s",
            key,
            before.phase.value,
            row.phase.value,
            event.name.lower(),
            by,
            f": {reason.message}" if reason else "",
        )
        if event not in {SessionEvent.NAPS, SessionEvent.WAKES}:
            self.runtime(key).suspends_at = None
        if moved:
            self.runtime(key).lacks_memory_since = None
            self.note_waiting(key, None)
        if row.incarnation != before.incarnation:
            self.runtime(key).begin_anew()
        self.runtime(key).end_untold = event is SessionEvent.DISCARDED
        self.touch(key)
        return row

    def _reclaimed(
        self, row: SessionRow, now: float, phase: Phase | None = None
    ) -> list[Any]:
        more = accounting.left(row, self.gpus_left(row), now, phase)
        if not more:
            return []
        total = (self.journal.noted(NoteKind.RECLAIMED, "") or 0.0) + more
        return schema.note(NoteKind.RECLAIMED, "", total)

    def update(
        self,
        key: SessionKey,
        audit: AuditLine | None = None,
        checkpoints: Iterable[CheckpointRow] = (),
        **changes: Any,
    ) -> SessionRow:
        if (failure := changes.get("failure")) is not None:
            changes["failure"] = self.timed(failure)
        row = msgspec.structs.replace(self.row(key), **changes)
        self.journal.save(row, audit, self._kept(row, checkpoints))
        self.touch(key)
        return row

    def order(
        self, key: SessionKey, intent: Intent, by: str, message: str = "", **more: Any
    ) -> None:
        line = self.audit_line(key, by, f"ask to {intent.value}", message)
        order = {**session.NO_ORDER, "intent": intent, "intent_by": by, **more}
        self.update(key, line, **order)
        self.look(key)

    def order_return(self, row: SessionRow, message: str = "") -> None:
        if row.intent is Intent.NONE and not row.asks and not row.claimed:
            self.order(row.key, Intent.RESUME, SERVICE, message)

    def revoke_tabs(self, row: SessionRow, line: AuditLine | None = None) -> None:
        """Take the right to ask and order from the tabs of all its sessions so far."""
        kept = self.journal.checkpoints(row.key)
        sessions = {row.session, *(each.info.session for each in kept)}
        self.update(row.key, line, tabs_revoked=frozenset(sessions))

    def keep(
        self,
        key: SessionKey,
        checkpoints: Iterable[CheckpointRow],
        audit: AuditLine | None = None,
    ) -> None:
        if self.journal.session(key) is not None:
            self.update(key, audit, checkpoints)
        else:
            self.journal.keep(self._kept(self.row(key), checkpoints))

    def aside(self, row: CheckpointRow) -> CheckpointRow:
        """Return the row, set aside by a person's word, for as long as is set."""
        return row.set_aside(self.clock.now() + self.settings.set_aside)

    def found(self, infos: Iterable[CheckpointInfo]) -> list[CheckpointRow]:
        known = ((info, self.journal.checkpoint(info.id)) for info in infos)
        return [row or CheckpointRow(info=info) for info, row in known]

    def _kept(
        self, row: SessionRow, given: Iterable[CheckpointRow]
    ) -> list[CheckpointRow]:
        """Return the checkpoints that are something else to a session from now on."""
        before = {each.id: each for each in self.journal.checkpoints(row.key)}
        rows = before | {each.id: each for each in given}
        if not rows:
            return []
        ruled = bool(self.saved_every(row.key))
        terms = retention.Terms(self.settings, self.clock.now(), ruled)
        kept = retention.kept(row, rows.values(), terms)
        return [each for each in kept if before.get(each.id) != each]

    def timed(self, failure: Failure) -> Failure:
        if failure.at or not failure.retryable:
            return failure
        return msgspec.structs.replace(failure, at=self.clock.now())

    def audit_line(
        self, key: SessionKey, who: str, what: str, message: str = "", code: str = ""
    ) -> AuditLine:
        now = self.clock.now()
        return AuditLine(
            at=now, key=key, who=who, what=what, message=message, code=code
        )

    async def until(
        self, key: SessionKey, condition: Callable[[SessionRow], bool], limit: float
    ) -> bool:
        return await self._changed.until(lambda: condition(self.row(key)), limit)

    def highest_generation(self, key: SessionKey) -> int:
        """The highest known or given out under a name, of deleted sessions, too."""
        kept = [row.info.generation for row in self.journal.checkpoints(key)]
        known = self._generations.get(key, 0)
        highest = max([known, self.row(key).stamp[1], *kept])
        if highest:
            self._generations[key] = highest
        return highest

    def next_generation(self, key: SessionKey) -> int:
        """Take the next generation for a capture: unique for a name and a term."""
        self._generations[key] = self.highest_generation(key) + 1
        return self._generations[key]

    # --- what was seen
    def see(self, key: SessionKey, saved: Iterable[CheckpointInfo]) -> None:
        runtime, row = self.runtime(key), self.row(key)
        infos = [info for info in saved if info.id not in runtime.deleted]
        before = {each.id: each for each in self.journal.checkpoints(key)}
        new = [CheckpointRow(info=info) for info in infos if info.id not in before]
        named = [
            before[info.id].said(name=info.name)
            for info in infos
            if info.id in before and info.id not in runtime.told
            if info.name != before[info.id].name
        ]
        if not (new or named):
            return
        changes: dict[str, Any] = {}
        if any(each.stamp > row.stamp and each.info.aside for each in new):
            chosen = retention.chosen_since(row, before.values(), infos)
            if chosen is not None:  # and nothing was decided of it yet
                new.append(chosen.said(aside=None))
                term, generation = chosen.stamp
                changes = {"stamp": (term, generation - 1)}
        if row.since:
            self.update(key, checkpoints=[*named, *new], **changes)
        else:
            self.keep(key, [*named, *new])
            self.touch(key)

    def gpus_of(self, row: SessionRow) -> list[GpuSample]:
        """Return the GPUs that a session holds, or that it held when it was saved."""
        if row.phase in {*session.LIVE, Phase.SUSPENDING}:
            return self.runtime(row.key).cards_or_nap
        saved = self.journal.checkpoint(row.checkpoint)
        return saved.info.gpus if saved is not None else []

    def gpus_left(self, row: SessionRow) -> float:
        return len(self.gpus_of(row)) / self.settings.seats_per_gpu

    def note_waiting(self, key: SessionKey, waiting: Waiting | None) -> None:
        """Note its place in the queue for a GPU; None: it has none, or no more."""
        runtime = self.runtime(key)
        before, runtime.waiting = runtime.waiting, waiting
        if before is not None and waiting is None:
            self.counters.waits.observe(self.clock.now() - before.since)
        if (before and before.place) != (waiting and waiting.place):
            self.touch(key)

    def note_node(self, key: SessionKey, tree: Tree | None) -> None:
        """Note the node of its programs; it stays when they have ended."""
        row = self.row(key)
        known = tree is not None and tree.incarnation == row.incarnation and tree.node
        if tree is not None and known and tree.node != row.node:
            self.update(key, node=tree.node)

    def _look_at_node(self, node: str, drained: bool) -> None:
        for row in self.journal.sessions():
            if row.node != node or row.phase.rests:
                continue
            if drained and row.backoff_until:
                # What failed or was called off before is tried now, and told anew.
                self.update(row.key, failures=0, backoff_until=None)
            self.touch(row.key)
            self.look(row.key)

    def note_ended(self, key: SessionKey, observed: Observed) -> None:
        """Drop the report of programs beside the session that have ended since."""
        failure = self.row(key).failure
        if failure is None or not failure.incarnation:
            return
        if all(tree.incarnation != failure.incarnation for tree in observed.left()):
            self.update(key, failure=None)

    # --- naps
    def note_nap(
        self, key: SessionKey, tree: Tree | None, asked: float | None = None
    ) -> None:
        """Note what naps of a session's tree, as its agent has just said.

        ``asked``: when (monotonic); None: it told unasked. An answer is dropped if
        more was heard meanwhile: it may be older.
        """
        runtime = self.runtime(key)
        if asked is not None and asked < runtime.napping_seen:
            return
        napping = tree if tree is not None and tree.runs and tree.nap else None
        before, runtime.napping = runtime.napping, napping
        runtime.napping_seen = self.clock.monotonic()
        if napping is None:
            runtime.waking_until = None
        if (before and before.nap) != (napping and napping.nap):
            self.touch(key)

    def expect_awake(self, key: SessionKey, at: float | None) -> None:
        runtime = self.runtime(key)
        if runtime.waking_until != at:
            runtime.waking_until = at
            self.touch(key)

    # --- operations
    def begin(self, key: SessionKey, kind: str) -> OperationEvents:
        self.end(key)
        operation = self.runtime(key).operation = OperationEvents(kind)
        return operation

    def operation(self, key: SessionKey) -> OperationEvents | None:
        return self.runtime(key).operation

    def has_come_back(self, key: SessionKey) -> bool:
        operation = self.operation(key)
        return operation is not None and operation.succeeded

    def end(self, key: SessionKey, failure: Failure | None = None) -> None:
        """End an operation whose own end was never received; without one, cancelled."""
        operation = self.operation(key)
        if operation is not None and not operation.ended:
            operation.add(Event(failure=failure or failure_of(Reason.CANCELLED)))

    def step(self, key: SessionKey, kind: str, event: Event) -> None:
        operation = self.operation(key)
        if operation is None or operation.ended or operation.kind != kind:
            operation = self.begin(key, kind)
        operation.add(event)
        self.touch(key)

    def note_silent(self, nodes: Mapping[str, Finding]) -> None:
        self.silences = nodes

    def judged(self, key: SessionKey, decisions: list[Decision]) -> None:
        runtime = self.runtime(key)
        before, runtime.decisions = runtime.decisions, decisions
        if [v.code for v in before[:1]] != [v.code for v in decisions[:1]]:
            self.touch(key)

    def judged_nap(self, key: SessionKey, decision: Decision | None) -> None:
        runtime = self.runtime(key)
        before, runtime.nap_decision = runtime.nap_decision, decision
        if (before and before.code) != (decision and decision.code):
            self.touch(key)

    # --- views
    def view(self, key: SessionKey) -> SessionView:
        """A session as pages show it.

        Raises:
            NotFound: no such session.
        """
        row = self.journal.session(key)
        if row is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
        return self._view_of(row)

    def views(self) -> list[SessionView]:
        views = map(self._view_of, self.journal.sessions())
        return [v for v in views if v.phase is not Phase.STOPPED or _has_remains(v)]

    def _view_of(self, row: SessionRow) -> SessionView:
        return views.view_of(
            row,
            self.journal.checkpoints(row.key),
            self.runtime(row.key),
            self.policy_of(row),
            suspension=self.suspension(row),
            gpus_held=len(self.gpus_of(row)),
        )

    def suspension(self, row: SessionRow) -> Suspension | None:
        if row.phase not in {*session.SAVED, Phase.RESUMING}:
            return None
        saved = self.journal.checkpoint(row.checkpoint)
        info = saved.info if saved is not None else None
        return views.suspension_of(row, info, self.settings.retention)

    def policy_of(self, row: SessionRow) -> SessionPolicy | None:
        return self.policies(row.key) if row.phase in session.LIVE else None

    def touch(self, key: SessionKey) -> None:
        self._changed.touch()
        row = self.journal.session(key)
        if row is not None:
            self._views.publish(self._view_of(row))

    def remove(
        self,
        key: SessionKey,
        line: AuditLine | None,
        checkpoints: Iterable[CheckpointRow] = (),
        also: Iterable[Any] = (),
    ) -> None:
        row, now = self.row(key), self.clock.now()
        kept = self._kept(SessionRow(key=key), checkpoints)
        self.journal.forget(key, line, kept, [*self._reclaimed(row, now), *also])
        self.forget(key)

    def forget(self, key: SessionKey) -> None:
        self.end(key)
        self.runtimes.pop(key, None)


def _has_remains(view: SessionView) -> bool:
    runs_on = view.failure is not None and view.failure.incarnation != ""
    return runs_on or any(one.keeping == "aside" for one in view.kept)
