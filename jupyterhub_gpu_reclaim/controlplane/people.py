"""User API: what people and programs may ask about sessions.

A wish is written into the row as an intent, and the worker carries it out; nothing here
waits for an operation. The policy is not asked about a person's orders.
"""

from __future__ import annotations

import logging
import math
import unicodedata
from typing import TYPE_CHECKING, Any

import msgspec

from jupyterhub_gpu_reclaim.common.auth.principals import of_user
from jupyterhub_gpu_reclaim.common.errors import (
    BadRequest,
    NotFound,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import AuditLine, Decision, Phase, SessionKey
from jupyterhub_gpu_reclaim.common.orders import (
    LONGEST_KEEP,
    LONGEST_NAME,
    Deleted,
    Left,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration
from jupyterhub_gpu_reclaim.controlplane import (
    audit,
    expiry,
    marks,
    operations,
    owners,
    retention,
    taking,
)
from jupyterhub_gpu_reclaim.controlplane.phase import Observed
from jupyterhub_gpu_reclaim.controlplane.plans import order_renewal
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import (
    LIVE,
    NO_ORDER,
    Intent,
    Keeping,
    SessionEvent,
    SessionRow,
    is_needless,
)

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.orders import Order
    from jupyterhub_gpu_reclaim.controlplane.decide.judge import Judge
    from jupyterhub_gpu_reclaim.controlplane.deletions import Deletions
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


_log = logging.getLogger(__name__)

#: MySQL rounds the time at which an account was made; the Hub may know it better.
ROUNDED_SECONDS = 2.0
#: Letters and a symbol without ink: of Hangul, and the empty pattern of Braille.
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
#: Most named save points of a session: each is kept for days, and costs every look.
MOST_NAMED = 50
#: Reasons why a checkpoint remains after its user has deleted all that can be deleted.
_WHY = {
    Keeping.CURRENT: "The session is being suspended in it, or resumed from it.",
    Keeping.SUPERSEDED: "The session came back from it; it is kept in case it ends.",
    Keeping.ASIDE: "It was put aside.",
    Keeping.TO_DELETE: "It is deleted as soon as the agent and its store answer.",
}


def _left(row: CheckpointRow) -> Left:
    until = None if row.keeping is Keeping.TO_DELETE else row.expires
    return Left(checkpoint=row.id, until=until, why=_WHY[row.keeping])


class UserApi:
    """Calls about sessions, by people and programs.

    Each raises ``NotFound`` where there is no such session. ``by`` is who asks: of a
    former account's session the name's new one may order nothing (``former_account``),
    and who ``manages`` may say that both are the same person.
    """

    def __init__(self, sessions: Sessions, deletions: Deletions, judge: Judge) -> None:
        self._sessions = sessions
        self._deletions = deletions
        self._judge = judge
        self.sessions, self.session = sessions.views, sessions.view
        self.changes = sessions.changes

    def why(self, key: SessionKey) -> list[Decision]:
        """Return every reason for or against a suspend, the deciding one first."""
        row = self._known_row(key)
        if row.phase not in LIVE:
            return []
        self._judge.reclaims(row)
        return self._sessions.runtime(key).decisions

    def compare_account(self, key: SessionKey, made: float) -> None:
        """Note that a session is of an account made before the name's present one.

        ``made``: Unix time at which the Hub made that one; infinite: not known.
        """
        row = self._sessions.row(key)
        later = made - owners.made(row.account) if made < math.inf else 0.0
        if later > ROUNDED_SECONDS and not row.claimed:
            self._sessions.update(key, claimed=True)

    async def order(
        self, key: SessionKey, order: Order, by: str, *, manages: bool = False
    ) -> Any:
        """Carry an order out, or begin to; its answer, or the session as it is then."""
        fields = {name: getattr(order, name) for name in order.__struct_fields__}
        if order.trusts:
            fields["manages"] = manages
        work = getattr(self, order.kind.replace("-", "_"))
        answer = await work(key, by=by, **fields)
        return self._sessions.view(key) if answer is None else answer

    async def suspend(self, key: SessionKey, by: str) -> None:
        """Suspend it as soon as possible; idempotent.

        Raises:
            Refused: ``wrong_phase``: it is coming back, or does not run.
        """
        row = self._own_row(key, by)
        gone = {Phase.SUSPENDING, Phase.RELEASING, Phase.SUSPENDED}
        if row.phase in LIVE:
            self._sessions.order(key, Intent.SUSPEND, by)
        elif row.phase not in gone or row.intent is Intent.RESUME:
            raise _wrong_phase(row, SessionEvent.SUSPEND)

    async def save(self, key: SessionKey, by: str, name: str = "") -> None:
        """Save it as soon as possible, while it goes on.

        Raises:
            BadRequest: the name is not valid.
            Refused: ``wrong_phase``; ``operation_in_flight``: another order is first;
                ``node_drains``; or there are too many names.
        """
        row = self._own_row(key, by)
        if row.phase not in LIVE:
            raise _wrong_phase(row, "be saved now")
        if row.intent not in {Intent.NONE, Intent.SAVE}:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=row.intent.value)
        self._check_stays(row)
        if name := _checked_name(name):
            self._check_names(key)
        self._sessions.order(key, Intent.SAVE, by, save_name=name or row.save_name)

    async def nap(self, key: SessionKey, by: str) -> None:
        """Move its GPU memory out as soon as possible; idempotent.

        Raises:
            Refused: ``wrong_phase``; ``operation_in_flight``: its suspend was ordered;
                ``node_drains``.
        """
        await self._order_nap(key, Intent.NAP, SessionEvent.NAPS, by)

    async def wake(self, key: SessionKey, by: str) -> None:
        """Move its GPU memory back; idempotent.

        Raises:
            Refused: as for ``nap``.
        """
        await self._order_nap(key, Intent.WAKE, SessionEvent.WAKES, by)

    async def _order_nap(
        self, key: SessionKey, intent: Intent, event: SessionEvent, by: str
    ) -> None:
        row = self._own_row(key, by)
        if row.phase not in LIVE:
            raise _wrong_phase(row, event)
        if row.intent is Intent.SUSPEND:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=row.intent.value)
        self._check_stays(row)
        self._sessions.order(key, intent, by)

    async def resume(self, key: SessionKey, by: str, *, manages: bool = False) -> None:
        """Resume a suspended session; a suspend under way is cancelled.

        Raises:
            Refused: ``wrong_phase``: it has no checkpoint; ``former_account``: it is
                not known which account it belongs to.
        """
        row = self._known_row(key)
        self._settle_account(key, by, manages=manages)
        if row.phase in {Phase.SUSPENDED, Phase.RELEASING, Phase.SUSPENDING}:
            self._sessions.order(key, Intent.RESUME, by)
            await operations.call_off(self._sessions, row)
        elif row.phase is Phase.STOPPED:
            raise _wrong_phase(row, SessionEvent.RESTORE)

    async def put_files_back(
        self, key: SessionKey, by: str, *, manages: bool = False
    ) -> None:
        """Resume a session with its files as they were; what is newer goes beside.

        Raises:
            Refused: ``wrong_phase``: nobody has been asked that; and see ``resume``.
        """
        row = self._known_row(key)
        asked = row.failure if row.phase is Phase.SUSPENDED else None
        if asked is None or asked.code != Reason.FILES_NEWER.value:
            raise _wrong_phase(row, SessionEvent.RESTORE)
        self._settle_account(key, by, manages=manages)
        now, journal = self._sessions.clock.now(), self._sessions.journal
        journal.note(NoteKind.FILES_BACK, row.checkpoint, now)
        line = self._sessions.audit_line(key, by, "put files back", asked.message)
        self._sessions.update(key, line)
        await self.resume(key, by, manages=manages)

    async def keep(
        self, key: SessionKey, seconds: float, by: str, *, manages: bool = False
    ) -> None:
        """Leave a session alone for some time; 0 takes that back.

        A warning is taken back, and so is a suspend that was ordered or is under way.

        Raises:
            Refused: longer than allowed; ``node_drains``; or ``wrong_phase``: it is
                stopped, and its next start is a new session.
        """
        row = self._own_row(key, by)
        if row.phase is Phase.STOPPED and seconds:
            raise _wrong_phase(row, "be kept")
        if seconds:
            self._check_stays(row)
        limit = self.longest_keep(manages=manages)
        if seconds > limit:
            what = f"A session can be kept for {duration(limit)} at most."
            raise Refused(Reason.INVALID, what=what)
        now = self._sessions.clock.now()
        told = f"asked to keep it for {duration(seconds)}."
        told = told if seconds else "cancelled Keep."
        ordered = row.phase in LIVE and row.intent is Intent.SUSPEND
        self._sessions.update(
            key,
            self._sessions.audit_line(key, by, "keep", told),
            kept_until=now + seconds if seconds else None,
            kept_by=by if seconds else "",
            **(NO_ORDER if seconds and ordered else {}),
        )
        if seconds:
            await operations.call_off(self._sessions, row)
        runtime = self._sessions.runtime(key)
        if runtime.suspends_at is not None and seconds:
            runtime.suspends_at = None
            told = f"Kept for {duration(seconds)} at the request of {by}."
            line = self._sessions.audit_line(key, by, "stays", told, Reason.KEPT.value)
            self._sessions.update(key, line)
        self._sessions.look(key)

    def longest_keep(self, *, manages: bool = False) -> float:
        return LONGEST_KEEP if manages else self._sessions.settings.keep_limit

    async def opt_out(self, key: SessionKey, out: bool, by: str) -> None:
        self._own_row(key, by)
        line = self._sessions.audit_line(key, by, "opt out" if out else "opt in")
        self._sessions.update(key, line, opted_out_by=by if out else "")
        self._sessions.look(key)

    async def renew_login(self, key: SessionKey, by: str) -> None:
        """Let its next start renew a login that the Hub no longer knows."""
        self._known_row(key)
        # A Hub that has lost its database has other accounts for the same people.
        owners.give(self._sessions, key)
        order_renewal(self._sessions, key, by)

    async def revoke_tabs(self, key: SessionKey, by: str) -> None:
        """Take the right to ask and order from all tabs of its starts so far."""
        row = self._own_row(key, by)
        line = self._sessions.audit_line(key, by, "revoke tabs")
        self._sessions.revoke_tabs(row, line)

    def tab_counts(self, key: SessionKey, session: str) -> bool:
        """Whether an open tab of that session may ask and order.

        Its key is in the session's environment, where a guest may have read it. So it
        counts only while that very session runs or is suspended, and until it is
        revoked.
        """
        row = self._sessions.row(key)
        there = row.session == session and row.phase is not Phase.STOPPED
        return there and session not in row.tabs_revoked

    async def start_fresh(self, key: SessionKey, by: str) -> None:
        """Set the checkpoint aside for ``Settings.set_aside``; the next start is cold.

        Raises:
            Refused: ``wrong_phase``: it is not suspended.
        """
        row = self._known_row(key)
        if row.phase is Phase.STOPPED and row.tells(Reason.RENAMED):
            line = self._sessions.audit_line(key, by, "start fresh")
            self._sessions.update(key, line, failure=None)
            return
        rows = self._sessions.journal.checkpoints(key)
        self._sessions.apply(
            key,
            SessionEvent.PUT_ASIDE,
            by=by,
            checkpoints=[
                self._sessions.aside(each)
                for each in rows
                if each.id == row.checkpoint
                or (each.keeping is Keeping.ASIDE and each.expires is None)
            ],
            checkpoint="",
        )

    async def bring_back(
        self,
        key: SessionKey,
        checkpoint: str,
        by: str,
        *,
        save_running: bool = False,
        manages: bool = False,
    ) -> None:
        """Bring back another checkpoint; the present one is set aside.

        With ``save_running``, a session that runs is suspended first.

        Raises:
            NotFound: no such session or checkpoint.
            Refused: ``session_runs``: it may not be suspended for this;
                ``operation_in_flight``: a suspend or resume is under way.
            Unreachable, StoreError: the store has to be asked, and does not answer.
        """
        # Whose it is comes first; a manager's Resume settles that.
        self._settle_account(key, by, manages=False)
        before = self._sessions.row(key)
        wanted = await self._find_checkpoint(key, checkpoint, manages=manages)
        row = self._sessions.row(key)
        if row.phase in LIVE and row.incarnation != before.incarnation:
            save_running = False  # what was asked for was not this session
        if row.phase.rests:
            taking.bring_back(self._sessions, row, checkpoint=checkpoint, by=by)
        elif row.phase in LIVE and save_running:
            line = self._sessions.audit_line(key, by, "ask to bring back", wanted.id)
            self._sessions.update(
                key, line, bring_back=wanted.id, intent=Intent.SUSPEND, intent_by=by
            )
        elif row.phase in LIVE:
            raise Refused(Reason.SESSION_RUNS)
        else:
            raise Refused(Reason.OPERATION_IN_FLIGHT, operation=row.phase.value)
        if manages:
            owners.give(self._sessions, key)
        self._sessions.look(key)

    async def _find_checkpoint(
        self, key: SessionKey, checkpoint: str, *, manages: bool
    ) -> CheckpointRow:
        """Return one that may be brought back; the store knows better than we do."""
        try:
            infos = tuple(await self._sessions.agent.checkpoints(key))
        except (Unreachable, StoreError):
            if self._sessions.journal.checkpoint(checkpoint) is None:
                raise
        else:
            seen = self._deletions.living(key, Observed((), infos, None))
            self._sessions.see(key, seen.saved or ())
            if seen.checkpoint(checkpoint) is None:
                raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)
        return self._own(self._sessions.row(key), checkpoint, manages=manages)

    async def rename(
        self, key: SessionKey, checkpoint: str, name: str, by: str
    ) -> None:
        """Give a save point another name; without one, it is kept as any other.

        Raises:
            NotFound: no such session or checkpoint.
            BadRequest: the name is not valid.
            Refused: it is no save point, or there are too many names.
            Unreachable, StoreError: the name is kept in the store.
        """
        row = self._own_row(key, by)
        found, name = self._own(row, checkpoint), _checked_name(name)
        if not found.info.goes_on:
            raise Refused(Reason.INVALID, what="Only save points have a name.")
        if name and not found.name:
            self._check_names(key)
        there = await self._sessions.agent.checkpoints(key)
        info = next((each for each in there if each.id == checkpoint), found.info)
        said = msgspec.structs.replace(info.mark, name=name, adds_to=info.word)
        await marks.tell(self._sessions, key, checkpoint, said)
        called = f"“{name}”" if name else ""
        line = self._sessions.audit_line(key, by, "rename", called)
        found = self._own(row, checkpoint)
        self._sessions.update(key, line, [found.said(name=name)])

    def _own(
        self, row: SessionRow, checkpoint: str, *, manages: bool = False
    ) -> CheckpointRow:
        found = self._sessions.journal.checkpoint(checkpoint)
        if found is not None and found.key == row.key:
            gone = found.keeping is Keeping.TO_DELETE
            if not gone and (manages or not retention.is_hidden(row, found)):
                return found
        raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint)

    def _discard(self, row: SessionRow, checkpoint: str, by: str) -> None:
        if row.phase is Phase.SUSPENDED and checkpoint == row.checkpoint:
            expiry.discard(self._sessions, row.key, checkpoint, by=by)
            return
        found = self._own(row, checkpoint)
        if not is_needless(found, row):
            raise _wrong_phase(row, SessionEvent.DISCARDED)
        line = self._sessions.audit_line(row.key, by, "discard", checkpoint)
        gone = expiry.to_delete(self._sessions, checkpoint)
        self._sessions.update(row.key, line, gone)

    async def end_tree(self, key: SessionKey, incarnation: str, by: str) -> None:
        """End a session's second tree: one beside it, or one that the Hub has stopped.

        Raises:
            NotFound: no such tree.
            Refused: ``wrong_phase``: it is the session itself.
        """
        row = self._known_row(key)
        trees = await self._sessions.agent.trees(key)
        if incarnation not in {tree.incarnation for tree in trees}:
            raise NotFound(Reason.UNKNOWN_SESSION, session=incarnation)
        if incarnation == row.incarnation and row.phase is not Phase.STOPPED:
            raise _wrong_phase(row, "be ended like this")
        await taking.end(self._sessions, key, incarnation)
        line = self._sessions.audit_line(key, by, "end second tree", incarnation)
        self._sessions.update(key, line, failure=None)
        self._sessions.look(key)

    async def delete(
        self,
        key: SessionKey,
        by: str,
        checkpoint: str = "",
        *,
        everything: bool = False,
    ) -> Deleted:
        """Delete a checkpoint; say what is gone, and until when and why others stay.

        Args:
            key: the session.
            by: who asks for it.
            checkpoint: empty: what it is suspended in. A page may be older than the
                session, so that never means another one.
            everything: also what was set aside, and the parent of a running session,
                which is then gone if its programs end in the next minutes.

        Raises:
            NotFound: no such session or checkpoint.
            Refused: ``wrong_phase``: the checkpoint is in use, or none was named and
                the session is not suspended.
        """
        row = self._own_row(key, by)
        visible = self._visible(key)
        named = [checkpoint or row.checkpoint]
        if everything and not checkpoint:
            named = [each.id for each in visible if is_needless(each, row)]
            if not visible:
                raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint="")
        elif not checkpoint and row.phase is not Phase.SUSPENDED:
            raise _wrong_phase(row, SessionEvent.DISCARDED)
        for each in named:  # the oldest first
            self._discard(self._sessions.row(key), each, by)
        await expiry.collect(self._sessions)
        journal = self._sessions.journal
        rows = [kept for each in visible if (kept := journal.checkpoint(each.id))]
        left = {each.id for each in rows}
        gone = [each.id for each in visible if each.id not in left]
        return Deleted(deleted=gone, kept=[*map(_left, rows)])

    def _visible(self, key: SessionKey) -> list[CheckpointRow]:
        rows, session = self._sessions.journal.checkpoints(key), self._sessions.row(key)
        return [row for row in rows if not retention.is_hidden(session, row)]

    def audit(
        self, of: SessionKey | str | None, limit: int = 100, before: int = 0
    ) -> list[AuditLine]:
        lines = self._sessions.journal.audit(of, limit, before)
        return [audit.told(line) for line in lines]

    def _check_names(self, key: SessionKey) -> None:
        if sum(bool(row.name) for row in self._visible(key)) >= MOST_NAMED:
            what = f"{MOST_NAMED} save points have a name; delete one of them first."
            raise Refused(Reason.INVALID, what=what)

    def _check_stays(self, row: SessionRow) -> None:
        drain = self._sessions.drains.of_session(row)
        if drain is not None:
            raise Refused(Reason.NODE_DRAINS, node=drain.name, why=drain.because)

    def _known_row(self, key: SessionKey) -> SessionRow:
        row = self._sessions.journal.session(key)
        if row is None:
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
        return row

    def _own_row(self, key: SessionKey, by: str) -> SessionRow:
        row = self._known_row(key)
        if by == of_user(key.user) and row.claimed:
            raise Refused(Reason.FORMER_ACCOUNT, user=key.user)
        return row

    def _settle_account(self, key: SessionKey, by: str, *, manages: bool) -> None:
        """Give a former account's session to the new one, on a manager's word only."""
        claimed = self._sessions.row(key).claimed
        if claimed and not manages:
            raise Refused(Reason.FORMER_ACCOUNT, user=key.user)
        if claimed:
            owners.give(self._sessions, key)
            _log.warning("%s: %s has given it to the name's new account", key, by)


def _checked_name(text: str) -> str:
    """Return a name for people, as one line.

    Raises:
        BadRequest: it is too long, has a character that no line has, or looks empty.
    """
    name = text.strip()
    if len(name) > LONGEST_NAME or not name.isprintable():
        what = f"A name is one line of at most {LONGEST_NAME} characters."
        raise BadRequest(Reason.INVALID, what=what)
    if name and not any(map(_shows, name)):
        raise BadRequest(Reason.INVALID, what="A name has a character that shows.")
    return name


def _shows(character: str) -> bool:
    # A mark alone (accents, variation selectors) shows only on a letter before it.
    unseen = character in _FILLERS or unicodedata.category(character)[0] in "MZ"
    return not unseen


def _wrong_phase(row: SessionRow, action: str) -> Refused:
    return Refused(Reason.WRONG_PHASE, phase=row.phase.value, action=action)
