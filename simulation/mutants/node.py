"""Defects of the agent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.node.local_node import LocalNode
from jupyterhub_gpu_reclaim.node.nap.wakers import Wakers
from jupyterhub_gpu_reclaim.node.operations.card_room import CardRoom
from jupyterhub_gpu_reclaim.node.operations.gpu import Accelerator
from jupyterhub_gpu_reclaim.node.operations.known_term import KnownTerm
from jupyterhub_gpu_reclaim.node.operations.records import Record, Records, Stage
from jupyterhub_gpu_reclaim.node.sessions import trees
from jupyterhub_gpu_reclaim.node.workflows import (
    capture,
    rehearsal,
    rescue,
    tools,
)
from jupyterhub_gpu_reclaim.node.workflows.nap import Nap
from jupyterhub_gpu_reclaim.node.workflows.recovery import Recovery
from jupyterhub_gpu_reclaim.node.workflows.release import Releases
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from simulation.mutants.patch import Patch, nothing
from simulation.plan import Event

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
    from jupyterhub_gpu_reclaim.node.session import Session

_undo_capture = Releases.undo_capture
_settle = Recovery._settle


def _thaw_says_so_first(self: Releases, session: Session, record: Record) -> None:
    self.tools.records.note(record.at(Stage.ROLLING_BACK, record.steps))
    _undo_capture(self, session, record)


def _forget_with_checkpoint(self: Recovery, sessions: list[Session]) -> None:
    by_name = {session.incarnation: session for session in sessions}
    for record in self.tools.records.list():
        session = by_name.get(record.incarnation)
        if session is None or not trees.matches(record, session):
            if record.stage is Stage.ROLLING_BACK:
                with suppress(StoreError):
                    self.tools.store.delete(record.checkpoint)
            self.tools.records.delete(record.incarnation)


FAILED_THAW: tuple[Patch, ...] = (
    (Releases, "undo_capture", _thaw_says_so_first),
    (Recovery, "_forget_gone", _forget_with_checkpoint),
)
_ADA = SessionKey("ada")
#: The store is so slow that a release is still on its way.
WOKEN_BEFORE_ITS_END = (
    Event(4.4, "visit", _ADA),
    Event(9.9, "the store is slow", _ADA, share=0.58, count=20),
    Event(12.5, "suspend", _ADA),
    Event(13.8, "the tree is woken", _ADA),
    Event(20.8, "the machine loses power", _ADA, share=0.86),
)


#: No record may be missing: then nothing of the way back is taken, either.
FULL_FOLDER: tuple[Patch, ...] = ((tools, "_UNDOING", frozenset()),)

UNWRITTEN: tuple[Patch, ...] = ((Records, "remember", nothing),)

WOKEN: tuple[Patch, ...] = ((Releases, "_refuse_if_it_went_on", nothing),)


def _go_on_anyway(self: Recovery, session: Session) -> None:
    record = self.tools.records.find(session.incarnation)
    if record is not None and record.stage is Stage.RESTORING:
        self._settle_continuing(session, record)
        return
    _settle(self, session)


HALF_RESTORED: tuple[Patch, ...] = ((Recovery, "_settle", _go_on_anyway),)


def _thaw_alone(
    accelerator: Any, session: Session, record: Record, *, together: bool = False
) -> None:
    del accelerator, together
    thaw = capture.thaw  # type: ignore[attr-defined]  # the double of it
    thaw(trees.inspect(session), record.stopped_before)


EMPTY_GPU: tuple[Patch, ...] = ((capture, "thaw_tree", _thaw_alone),)

LATE_ORDERS: tuple[Patch, ...] = ((LocalNode, "_refuse_late", nothing),)

ANY_SERVICE: tuple[Patch, ...] = ((KnownTerm, "confirm", nothing),)

UNWATCHED: tuple[Patch, ...] = ((Wakers, "begin", nothing),)


async def _not_back(self: Nap, record: Record) -> None:
    del self, record


FAILED_NAP: tuple[Patch, ...] = ((Nap, "_roll_back", _not_back),)

ROOM_TWICE: tuple[Patch, ...] = ((CardRoom, "promise", nothing),)


def _patient(driver: Any, nvml: Any, limits: TimeLimits) -> Accelerator:
    return Accelerator(driver, nvml, replace(limits, room=60.0))


LOCKED_OUT: tuple[Patch, ...] = ((rescue, "Accelerator", _patient),)

UNREHEARSED: tuple[Patch, ...] = ((rehearsal, "rehearse", nothing),)

#: An empty folder is a store without checkpoints.
UNMOUNTED: tuple[Patch, ...] = ((IdentifiedBackend, "confirm", nothing),)
