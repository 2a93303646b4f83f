"""Tells whose a session is: an account of the Hub, by its id. A name is a label.

*Another account of that name* is another person, or the Hub has lost its database and
it is the same one. So the former account's checkpoints are neither brought back nor
deleted until a person decides: its user by "start fresh", which keeps them, hidden
(``retention.is_hidden``), or an administrator by a resume. What runs is neither adopted
nor ended: an administrator lets the new account in, or suspends it.

*Another name of that account*: a name is in programs' paths and logins. So a session
stays under its former name until that is given back; nothing is started beside it in
silence (``renamed``), unless its user chooses to start fresh.
"""

from __future__ import annotations

import contextlib
import math
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane import retention
from jupyterhub_gpu_reclaim.controlplane.schema import NoteKind
from jupyterhub_gpu_reclaim.controlplane.session import LIVE, Keeping
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey, Tree
    from jupyterhub_gpu_reclaim.controlplane.session import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions


#: Audit text about a former account's sessions.
_NEW = "The user's name belongs to another account of the Hub now."
_ANOTHER = (
    "another account of that name has started it, of this Hub before its database was"
    " replaced, or of a user who was deleted since"
)


def made(account: str) -> float:
    """Return the Unix time in an account's name; infinity: not known."""
    with contextlib.suppress(ValueError):
        text = account.partition(".")[2] + "+0000"
        return datetime.strptime(text, "%Y%m%dT%H%M%S%f%z").timestamp()
    return math.inf


# --- another account of the same name
def check(sessions: Sessions, placement: Placement) -> None:
    """Check, before a start, whose session it is; repeat the check if more was found.

    Raises:
        Refused: ``former_account``: a person has to choose first;
            ``not_adopted``: the former account's session runs.
    """
    key, owner, row = placement.key, placement.owner, sessions.row(placement.key)
    stopped, theirs = row.phase is Phase.STOPPED, row.account in {"", owner}
    if not owner or (theirs and not row.claimed):
        return  # or a spawner that does not report it
    if not theirs and not stopped:
        sessions.update(key, claimed=True)
        if row.phase in LIVE:
            raise _refuse_running(sessions, key)
        raise Refused(Reason.FORMER_ACCOUNT, user=key.user)
    if not stopped:
        sessions.update(key, claimed=False)
        return
    rows = sessions.journal.checkpoints(key)
    apart = [] if theirs else _set_apart(sessions, rows)
    sessions.remove(key, sessions.audit_line(key, SERVICE, "new account", _NEW), apart)
    for each in rows:  # what others have set apart: the start finds it
        if each.keeping is Keeping.ASIDE and each.info.account == owner:
            sessions.journal.drop(each.id)


def refuse_anothers(sessions: Sessions, tree: Tree, placement: Placement) -> None:
    """Refuse a session that runs under another account.

    Raises:
        Refused: ``not_adopted``; its page says so.
    """
    if placement.owner and tree.account not in {"", placement.owner}:
        raise _refuse_running(sessions, placement.key)


def note(sessions: Sessions, placement: Placement) -> None:
    key, owner, row = placement.key, placement.owner, sessions.row(placement.key)
    if row.account == owner or not owner:
        return
    row = msgspec.structs.replace(row, account=owner)
    others = [
        each
        for each in sessions.journal.checkpoints(key)
        if retention.is_anothers(row, each.info) and each.id != row.checkpoint
    ]
    apart = _set_apart(sessions, others)
    if sessions.journal.session(key):  # else it has a row when it runs
        sessions.update(key, checkpoints=apart, account=owner, claimed=False)
    else:
        sessions.keep(key, apart)


def give(sessions: Sessions, key: SessionKey) -> None:
    sessions.update(key, account="", claimed=False)


def _refuse_running(sessions: Sessions, key: SessionKey) -> Refused:
    """Return the refusal; its page shows it, where an administrator settles it."""
    running = Refused(Reason.NOT_ADOPTED, user=key.user, why=_ANOTHER)
    sessions.update(key, failure=codec.failure_of(running))
    return running


def _set_apart(
    sessions: Sessions, rows: Iterable[CheckpointRow]
) -> list[CheckpointRow]:
    return [
        sessions.aside(row)
        for row in rows
        if row.keeping is not Keeping.TO_DELETE and row.info.aside is None
    ]


# --- another name of the same account
def row_of(sessions: Sessions, placement: Placement) -> SessionRow:
    """Return a session's row; of a user renamed while it ran, the former name's."""
    rows = [sessions.row(placement.key), *sessions.journal.sessions()]
    own = (row for row in rows if row.incarnation == placement.incarnation)
    return next(own, rows[0])


async def names_of(sessions: Sessions, *ids: str) -> set[SessionKey]:
    """Return the names by which the agents, or else the store, know these ids."""
    known = set(ids) - {""}
    trees = await sessions.agent.trees()
    if names := {t.key for t in trees if known & {t.session, t.incarnation}}:
        return names
    return {
        info.key
        for info in await sessions.agent.checkpoints()
        if info.id in known or (info.aside is None and info.session in known)
    }


async def check_names(sessions: Sessions, placement: Placement) -> None:
    """Check that its user has no session under a former name.

    Raises:
        Refused: ``renamed``, unless the user has said to start fresh.
    """
    mine, ids = sessions.row(placement.key), {placement.former, placement.checkpoint}
    known = ids & {mine.checkpoint, mine.session, mine.incarnation} - {""}
    if known or mine.phase is not Phase.STOPPED or ids == {""}:
        return
    for key in sorted(await names_of(sessions, *ids) - {mine.key}):
        told = sessions.journal.notes(NoteKind.RENAMED, float).keys()
        if mine.failure is None and ids & told:
            continue
        error = Refused(Reason.RENAMED, there=key, here=mine.key)
        # Its user's "start fresh" leaves no failure.
        left = placement.checkpoint or placement.former
        sessions.journal.note(NoteKind.RENAMED, left, sessions.clock.now())
        sessions.update(mine.key, failure=codec.failure_of(error))
        raise error
