"""Tells the Hub's account a session belongs to, so that names inherit nothing.

The Hub knows accounts, everything here knows names. The spawner tells the account with
each start, and the session's row keeps it. If a name comes with another account, it
belongs to another person now, or the Hub has lost its database and it is the same
person; the two cannot be told apart here. So the former account's checkpoints are
neither brought back nor deleted until a person decides. If the user chooses "start
fresh", they are kept, hidden from that user, as long as others that are set aside. If
an administrator resumes the session, it belongs to whoever has the name. What runs is
neither adopted nor ended: an administrator lets the new account in, or suspends it.

A journal that was lost knows no account. Then the manifests say whose they are. One
that names none is nobody's without an administrator's word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.model.phases import LIVE
from jupyterhub_gpu_reclaim.controlplane.model.rows import (
    HIDDEN,
    WHOEVER_COMES,
    Keeping,
)
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import SERVICE

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey, Tree
    from jupyterhub_gpu_reclaim.controlplane.model.rows import CheckpointRow, SessionRow
    from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
    from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

#: Audit text about a former account's sessions.
_NEW = "The user's name belongs to another account of the Hub now."
_ANOTHER = (
    "another account of that name has started it, of this Hub before its database was"
    " replaced, or of a user who was deleted since"
)


def account_of(sessions: Sessions, row: SessionRow) -> str:
    """Return the account of a session, by its row or manifest; empty: nobody knows."""
    return row.account or _saved_by(sessions, row.checkpoint)


def check(sessions: Sessions, placement: Placement, settings: Settings) -> None:
    """Check, before a start, whose session it is; repeat the check if more was found.

    Raises:
        Refused: ``former_account``: a person has to choose first;
            ``not_adopted``: the former account's session runs.
        StoreError: the journal does not answer.
    """
    key, owner = placement.key, placement.owner
    if not owner:
        return  # a spawner that does not report it
    row = sessions.row(key)
    if not _is_anothers(sessions, row, owner):
        if row.claimed:
            sessions.update(key, claimed=False)
    elif row.phase is Phase.STOPPED:
        hand_over(sessions, key, settings)
    else:
        sessions.update(key, claimed=True)
        spare(sessions, key)
        raise Refused(Reason.FORMER_ACCOUNT, user=key.user)
    for each in sessions.journal.checkpoints(key):
        mine = _saved_by(sessions, each.id) == owner
        if each.keeping is Keeping.FORMER and mine:
            sessions.journal.drop(each.id)  # the start finds it


def refuse_anothers(sessions: Sessions, tree: Tree, placement: Placement) -> None:
    """Refuse a session that runs under another account.

    An administrator's order to renew its login makes it that account's.

    Raises:
        Refused: ``not_adopted``; its page says so.
    """
    if placement.owner and tree.account not in {"", placement.owner}:
        raise _refuse_running(sessions, placement.key)


def spare(sessions: Sessions, key: SessionKey) -> None:
    """Check that no former account's session runs, which may not be ended.

    Raises:
        Refused: ``not_adopted``: it runs; its page says so.
    """
    if sessions.row(key).phase in LIVE:
        raise _refuse_running(sessions, key)


def note(sessions: Sessions, placement: Placement, settings: Settings) -> None:
    """Note that the server belongs to its account; others' checkpoints do not.

    Raises:
        StoreError: it could not be written.
    """
    key, owner, row = placement.key, placement.owner, sessions.row(placement.key)
    if row.account == owner or not owner:
        return
    if row.account != WHOEVER_COMES:
        rows = sessions.journal.checkpoints(key)
        theirs = {owner} if row.account else {"", owner}
        former = [each for each in rows if _saved_by(sessions, each.id) not in theirs]
        _hide(sessions, former, settings)
    if sessions.journal.session(key):  # else it has a row when it runs
        sessions.update(key, account=owner, claimed=False)


def trust(sessions: Sessions, key: SessionKey) -> None:
    """Give a session to the name's owner by a manager's word, if asked or unknown.

    Raises:
        StoreError: it could not be written.
    """
    row = sessions.row(key)
    if row.claimed or not row.account:
        rows = sessions.journal.checkpoints(key)
        current = [each for each in rows if each.keeping is Keeping.CURRENT]
        # A program may have deleted the former one's user.
        _keep(sessions, current, Keeping.CURRENT)
        sessions.update(key, account=WHOEVER_COMES, claimed=False)


def hand_over(sessions: Sessions, key: SessionKey, settings: Settings) -> None:
    """Give the name to whoever comes, with nothing of the former account's.

    Its checkpoints are kept for a while, hidden. What still stands captured is ended by
    the next start.

    Raises:
        StoreError: it could not be written; it has to be repeated.
    """
    _hide(sessions, sessions.journal.checkpoints(key), settings)
    sessions.remove(key, sessions.audit_line(key, SERVICE, "new account", _NEW))


def _refuse_running(sessions: Sessions, key: SessionKey) -> Refused:
    """Return the refusal; its page shows it, where an administrator settles it."""
    running = Refused(Reason.NOT_ADOPTED, user=key.user, why=_ANOTHER)
    sessions.update(key, failure=codec.failure_of(running))
    return running


def _is_anothers(sessions: Sessions, row: SessionRow, owner: str) -> bool:
    if account := account_of(sessions, row):
        return account not in {owner, WHOEVER_COMES}
    return (
        row.phase not in LIVE
        and sessions.journal.checkpoint(row.checkpoint) is not None
    )


def _saved_by(sessions: Sessions, checkpoint: str) -> str:
    row = sessions.journal.checkpoint(checkpoint)
    return row.info.account if row and row.info else ""


def _hide(sessions: Sessions, rows: list[CheckpointRow], settings: Settings) -> None:
    seen = [row for row in rows if row.keeping not in HIDDEN]
    _keep(sessions, seen, Keeping.FORMER, settings.set_aside)


def _keep(
    sessions: Sessions,
    rows: list[CheckpointRow],
    keeping: Keeping,
    seconds: float | None = None,
) -> None:
    now = sessions.clock.now()
    expires = None if seconds is None else now + seconds
    by_word = keeping is Keeping.FORMER
    sessions.journal.keep(
        row.kept(keeping, now, expires, by_word=by_word) for row in rows
    )
