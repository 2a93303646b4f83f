"""Shadow: compares the computed phase with the journal's row, at each settle.

What is written down twice can differ. Each difference is counted by its kind, with the
first seed that shows it: the action that the row asks for, what row and ``derive`` say,
and how often the row says the same at the next settle. Nothing of a run is changed.

==============================  =====================================================
kind                            why
==============================  =====================================================
at rest
  in one -> in none,            The row was put back, or the store was: what the row
  suspended -> stopped          names was deleted since, or is not there any more. The
                                Hub's pointer may name it still; then a start asks.
  asks -> asks nothing          What a session came from long ago is kept like a save
                                point. The store does not say when it came back.
in the Hub
  suspended -> resuming         It starts the server; the journal has not been asked
                                yet, or has given that start up.
  live -> resuming              It runs, and has not answered the Hub yet.
  live -> stopped, suspended    The Hub takes for running what has ended.
moving
  take, adopt, give up,         The action writes down what has happened; the row says
  set aside                     the same at the next settle.
  report: -> live               It runs, and the Hub does not know of it.
  thaw, cancel: live ->         It stands frozen, and no row asks for that any more.
  suspending
==============================  =====================================================
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyterhub_gpu_reclaim.common.models import HubState, Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import marks
from jupyterhub_gpu_reclaim.controlplane.loop import reconciler, worker
from jupyterhub_gpu_reclaim.controlplane.model.actions import ActionKind
from jupyterhub_gpu_reclaim.controlplane.model.rows import Keeping
from jupyterhub_gpu_reclaim.controlplane.phase import Derived, Wishes, derive

if TYPE_CHECKING:
    from collections.abc import Collection

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
    from jupyterhub_gpu_reclaim.controlplane.model.actions import Action
    from jupyterhub_gpu_reclaim.controlplane.model.observed import Observed
    from jupyterhub_gpu_reclaim.controlplane.model.rows import SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions
    from simulation.mutants.patch import Patch

_SESSIONS: ContextVar[Sessions] = ContextVar("sessions")
AT_REST = "at rest"
_STAYS = {"live", "suspended", "stopped"}
_RESTS = {ActionKind.NOTHING, ActionKind.READY}


class Kind(NamedTuple):
    """A kind of comparison."""

    when: str
    journal: str
    derived: str


class Shadow:
    """Compares, and counts."""

    def __init__(self) -> None:
        self.seed = 0
        self.equal: Counter[str] = Counter()
        #: where a person's word decides that the store does not show yet
        self.by_wish: Counter[Kind] = Counter()
        self.different: Counter[Kind] = Counter()
        #: of these, those where the row says the same at the next settle
        self.follows: Counter[Kind] = Counter()
        self.first: dict[Kind, str] = {}
        self._last: dict[tuple[int, SessionKey], tuple[Kind, str]] = {}

    def patches(self) -> list[Patch]:
        """The names that it listens at."""
        settle, look = reconciler.settle, worker.Worker._settle

        def listening(
            row: SessionRow, observed: Observed, *more: Any, **named: Any
        ) -> Action:
            action = settle(row, observed, *more, **named)
            if not observed.silent and observed.hub is not None:
                its = wishes_of(_SESSIONS.get(), row.key, observed.saved or ())
                self.compare(row, observed, action, its)
            return action

        async def looking(its: Any, key: SessionKey) -> float | None:
            _SESSIONS.set(its._sessions)
            return await look(its, key)

        return [
            (worker, "settle", listening),
            (worker.Worker, "_settle", looking),
        ]

    def compare(
        self, row: SessionRow, observed: Observed, action: Action, wishes: Wishes
    ) -> None:
        """Compare one session's row with what is computed."""
        seen = observed._replace(known=frozenset())
        derived = derive(seen, wishes)
        when, journal, computed = _when(action, seen), _of_row(row), _of(derived)
        former, said = self._last.pop((self.seed, row.key), (None, ""))
        if former is not None and said == journal[0]:
            self.follows[former] += 1
        alone = _of(derive(seen, Wishes()))[0]
        if when == AT_REST and alone != computed[0]:
            self.by_wish[Kind(when, alone, computed[0])] += 1
        ours, theirs = _words(journal, computed)
        if ours == theirs:
            self.equal[when.split(":")[0]] += 1
            return
        kind = Kind(when, ours, theirs)
        self.different[kind] += 1
        self._last[self.seed, row.key] = kind, computed[0]
        self.first.setdefault(kind, self._example(row, seen, derived, wishes))

    def _example(
        self, row: SessionRow, observed: Observed, derived: Derived, wishes: Wishes
    ) -> str:
        trees = [
            f"{t.incarnation[-4:]} {t.state.value} {t.origin or t.checkpoint}"
            for t in observed.left()
        ]
        saved = [
            f"{i.id} {i.stamp}"
            + " aside" * (i.aside is not None)
            + " point" * i.goes_on
            + (f" said {wishes.said[i.id]}" if i.id in wishes.said else "")
            for i in observed.saved or ()
        ]
        failure = row.failure.code if row.failure else ""
        return (
            f"{self.seed} {row.key} hub {observed.hub} row {row.incarnation[-4:]}"
            f" {row.checkpoint} {row.stamp} {row.intent} {failure}; derived"
            f" {derived.checkpoint}; {trees}; {saved}"
        )

    def table(self) -> str:
        """All kinds, the most frequent first."""
        lines = []
        for when in (AT_REST, "in the Hub", "moving"):
            mine = {k: n for k, n in self.different.items() if k.when.startswith(when)}
            equal, other = self.equal[when], sum(mine.values())
            share = 100 * equal / max(1, equal + other)
            lines.append(f"{when}: {equal + other} compared, {share:.3f} % equal")
            for kind, count in sorted(mine.items(), key=lambda item: -item[1]):
                follows = f"{self.follows[kind]} of them said next, too"
                lines.append(
                    f"{count:8} {kind.when}: {kind.journal} -> {kind.derived}"
                    f" ({follows}; {self.first[kind]})"
                )
        for kind, count in sorted(self.by_wish.items()):
            words = f"{kind.journal} by the store alone, {kind.derived} by a wish"
            lines.append(f"{count:8} {kind.when}: {words}")
        return "\n".join(lines)


def wishes_of(
    sessions: Sessions, key: SessionKey, saved: Collection[CheckpointInfo]
) -> Wishes:
    """People's words that the store does not show yet, as the journal has them."""
    said = {
        row.id: row.info is not None and row.info.aside is not None
        for row in marks.untold(sessions, key, saved, {})
    }
    rows = sessions.journal.checkpoints(key)
    deleted = {row.id: True for row in rows if row.keeping is Keeping.TO_DELETE}
    return Wishes(said | deleted)


def _when(action: Action, observed: Observed) -> str:
    if action.kind not in _RESTS:
        return f"moving: {action.kind.value}"
    # What it takes for running, and is not: it has not looked yet.
    runs = observed.hub is HubState.RUNNING and observed.left()
    rests = runs or observed.hub is HubState.STOPPED
    return AT_REST if rests else f"in the Hub: {observed.hub}"


def _of_row(row: SessionRow) -> tuple[str, str, str]:
    code = row.failure.code if row.failure is not None else ""
    asked = code if code == Reason.ENDED_SINCE_SAVED.value else ""
    if row.phase is not Phase.SUSPENDED:
        asked = ""
    return "live" if row.phase.live else row.phase.value, row.checkpoint, asked


def _of(derived: Derived) -> tuple[str, str, str]:
    phase, question = derived.phase, derived.question
    if phase is None:
        return "not known", "", ""
    asked = question.value if question is not None and phase is Phase.SUSPENDED else ""
    return "live" if phase.live else phase.value, derived.checkpoint, asked


def _words(
    journal: tuple[str, str, str], computed: tuple[str, str, str]
) -> tuple[str, str]:
    """What differs, in words; twice the same if nothing does.

    While an operation is under way, only the phase is compared.
    """
    phase = journal[0]
    if phase != computed[0] or phase not in _STAYS or journal == computed:
        return phase, computed[0]
    if journal[1] != computed[1]:
        names = {journal[1]: "one", computed[1]: "another", "": "none"}
        return f"{phase} in {names[journal[1]]}", f"{phase} in {names[computed[1]]}"
    return f"{phase} asks {journal[2] or '-'}", f"{phase} asks {computed[2] or '-'}"
